"""A Redis server, or one that speaks its protocol (Valkey, KeyDB): its round trip, and what it says of itself."""
