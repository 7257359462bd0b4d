"""Who is told: Prometheus, HTTP, the terminal, JSON lines.  An exporter knows only Report and Reading."""
