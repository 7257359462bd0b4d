"""Every rule, in the order in which suspects are looked at.  Registering a rule is one line here."""

from __future__ import annotations

from agent.rules import (
    client_cpu_bound,
    client_not_reading,
    client_suspended_holding_connection,
    connection_per_query,
    connections_exhausted,
    cpu_contended,
    cpu_quota_throttled,
    cpu_stolen,
    cpu_suspended,
    cpu_throttled_between_requests,
    database_locked,
    database_slow,
    database_unreachable,
    instance_frozen,
    log_delivery_late,
    log_entries_dropped,
    log_files_in_memory,
    log_pipe_blocked,
    log_queue_in_memory,
    log_quota_exceeded,
    logs_lost_at_exit,
    memory_near_limit,
    network_slow,
    pool_saturated,
    proxy_or_server_starved,
    too_many_queries,
    waiting_for_database,
)
from agent.rules.rule import Rule

CPU_RULES: tuple[Rule, ...] = (
    cpu_throttled_between_requests.RULE,
    cpu_quota_throttled.RULE,
    cpu_stolen.RULE,
    cpu_suspended.RULE,
    cpu_contended.RULE,
    instance_frozen.RULE,
)

POSTGRES_RULES: tuple[Rule, ...] = (
    database_unreachable.RULE,
    connections_exhausted.RULE,
    too_many_queries.RULE,
    connection_per_query.RULE,
    database_slow.RULE,
    database_locked.RULE,
    network_slow.RULE,
    proxy_or_server_starved.RULE,
    waiting_for_database.RULE,
    client_suspended_holding_connection.RULE,
    client_not_reading.RULE,
    client_cpu_bound.RULE,
    pool_saturated.RULE,
)

LOG_RULES: tuple[Rule, ...] = (
    log_queue_in_memory.RULE,
    log_pipe_blocked.RULE,
    log_files_in_memory.RULE,
    log_entries_dropped.RULE,
    logs_lost_at_exit.RULE,
    log_quota_exceeded.RULE,
    log_delivery_late.RULE,
    memory_near_limit.RULE,
)

RULES = CPU_RULES + POSTGRES_RULES + LOG_RULES

BY_ID = {rule.id: rule for rule in RULES}
