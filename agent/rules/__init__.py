"""Every rule, in the order in which suspects are looked at.  Registering a rule is one line here."""

from __future__ import annotations

from agent.rules import (
    cpu_contended,
    cpu_quota_throttled,
    cpu_stolen,
    cpu_suspended,
    cpu_throttled_between_requests,
    instance_frozen,
)
from agent.rules.rule import Rule

RULES: tuple[Rule, ...] = (
    cpu_throttled_between_requests.RULE,
    cpu_quota_throttled.RULE,
    cpu_stolen.RULE,
    cpu_suspended.RULE,
    cpu_contended.RULE,
    instance_frozen.RULE,
)

BY_ID = {rule.id: rule for rule in RULES}
