"""Who takes the CPU.  In the order in which suspects are looked at; registering a rule is one line."""

from agent.rules.rule import load

RULES = load(
    __name__,
    "cpu_throttled_between_requests",
    "burst_balance_spent",
    "platform_quota_uncounted",
    "cpu_quota_throttled",
    "cpu_limit_too_low",
    "cpu_stolen",
    "cpu_suspended",
    "cpu_contended",
    "instance_frozen",
)
