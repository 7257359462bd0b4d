"""A Postgres round trip taken apart, and what the server says of its sessions."""
