"""Google Cloud's API, which can only be asked with calls that block."""
