"""What the app itself waits for or lacks, besides the CPU, the database and its logs.  In the order in which suspects are looked at; registering a rule is one line."""

from agent.rules.rule import load

RULES = load(
    __name__,
    "accept_queue_full",
    "name_lookup_slow",
    "memory_reclaim_stall",
    "io_stall",
    "runtime_oversubscribed",
    "cpu_limit_unusable",
    "background_refresh_starved",
    "event_loop_blocked",
)
