"""Small apps that log by one library each, or hold their event loop up: what the hooks see of them, by `python -m tests.lab.loggers`."""
