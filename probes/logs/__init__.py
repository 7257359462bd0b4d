"""Where log entries wait: pipes, files, collectors, and the way to the log service."""
