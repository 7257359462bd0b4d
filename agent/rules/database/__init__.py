"""What the database does, the way to it, and the client that holds its connections.  In the order in which suspects are looked at; registering a rule is one line."""

from agent.rules.rule import load

RULES = load(
    __name__,
    "database_unreachable",
    "redis_unreachable",
    "connections_exhausted",
    "too_many_queries",
    "connection_per_query",
    "database_slow",
    "database_locked",
    "redis_slow",
    "network_slow",
    "proxy_or_server_starved",
    "waiting_for_database",
    "client_suspended_holding_connection",
    "client_not_reading",
    "client_cpu_bound",
    "connections_held_by_app",
    "pool_saturated",
)
