"""What all instances of a service say together: ``stallscope fleet PROMETHEUS-URL``.

Nothing is gathered here.  Whoever scrapes the agents already has their findings as series; :mod:`look` puts a dozen
:mod:`questions` to that :mod:`engine`, :mod:`judged` makes one report of the answers, :mod:`text` shows it.
"""
