"""placeholder."""


def page(result: object) -> bytes:
    """Placeholder."""
    return b""
