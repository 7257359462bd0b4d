"""Exit codes of the command line; those above 63 as in BSD's sysexits."""

HEALTHY, FINDINGS, CANNOT_TELL = 0, 1, 2
USAGE, UNAVAILABLE, BAD_CONFIG = 64, 69, 78
