"""Where log entries wait or are lost, and the memory that they take.  In the order in which suspects are looked at; registering a rule is one line."""

from agent.rules.rule import load

RULES = load(
    __name__,
    "log_queue_in_memory",
    "log_pipe_blocked",
    "log_call_slow",
    "log_files_in_memory",
    "log_entries_dropped",
    "logs_lost_at_exit",
    "log_quota_exceeded",
    "log_delivery_late",
    "memory_near_limit",
)
