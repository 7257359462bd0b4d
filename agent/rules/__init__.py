"""Every rule, in the order in which suspects are looked at.

Registering a rule is one line in its room: its id, which is the name of its module and of its finding.
"""

from __future__ import annotations

from agent.rules import app, cpu, database, logs
from agent.rules.rule import Rule

RULES: tuple[Rule, ...] = cpu.RULES + database.RULES + app.RULES + logs.RULES

BY_ID = {rule.id: rule for rule in RULES}
