"""How long names take to look up: the resolver's settings, and timed questions to the name servers."""
