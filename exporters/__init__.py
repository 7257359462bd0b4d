"""Who is given the report: Prometheus, HTTP, the terminal, JSON lines.  An exporter knows only Report and Reading."""
