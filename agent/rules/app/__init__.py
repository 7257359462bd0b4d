"""What the app itself waits for or lacks, besides the CPU, the database and its logs.  In the order in which suspects are looked at; registering a rule is one line."""

from agent.rules.rule import load

RULES = load(
    __name__,
    "event_loop_blocked",
)
