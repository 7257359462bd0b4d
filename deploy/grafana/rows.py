"""What the dashboard shows: rows of panels and their queries, from the verdict down to the cause, then the fleet.

A query stands here once, with Grafana's variables in it; the tests run every one of them against a real Prometheus that scrapes a real agent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agent.views.stalled import NOT_STALLED

ALERTS = 'ALERTS{alertname=~"Stallscope.*",alertstate="firing",job=~"$job"}'
#: What tells revisions apart: a relabelled label, Cloud Run's by Google's collector, a Kubernetes ReplicaSet's.
REVISIONS = ("revision", "revision_name", "pod_template_hash")
#: The instances that are chosen; of recorded series, which have no instance.
CHOSEN = 'job=~"$job",$revision_label=~"$revision",instance=~"$instance"'
GROUPS = 'job=~"$job",$revision_label=~"$revision"'


@dataclass(frozen=True)
class Query:
    """A PromQL query and what its series are called."""

    expr: str
    legend: str = "__auto"


@dataclass(frozen=True)
class Panel:
    """One panel: ``kind`` is how it is drawn, ``width`` of 24 columns."""

    title: str
    queries: tuple[Query, ...]
    says: str
    kind: str = "lines"
    unit: str = "short"
    width: int = 12
    height: int = 8


def of(metric: str, *more: str) -> str:
    """The selector of a series of the chosen instances."""
    return f"{metric}{{{','.join((*more, CHOSEN))}}}"


def of_causes(metric: str) -> str:
    """The same of findings that are no effect of another: what an effect holds up its cause does, and it must not be counted twice."""
    return f"""{of(metric)} and ignoring (severity, explained_by) {of("stallscope_finding", 'explained_by=""')}"""


def mean(metric: str, by: str, *more: str) -> Query:
    """The mean over the chosen instances, for each value of these labels."""
    names = "/".join(f"{{{{{name}}}}}" for name in by.split(", "))
    return Query(f"avg by ({by}) ({of(metric, *more)})", names)


def rate(metric: str, by: str, legend: str, *more: str) -> Query:
    """How fast a counter grows, summed over the chosen instances."""
    return Query(f"sum by ({by}) (rate({of(metric, *more)}[$__rate_interval]))", legend)


def trip(server: str) -> tuple[Query, ...]:
    """The parts of a round trip, which sum to it."""
    parts = ("network", "server", "suspended", "client", "unknown")
    return tuple(
        Query(
            f"avg by (target, operation) ({of(f'stallscope_{server}_{part}_seconds')})",
            f"{{{{target}}}} {{{{operation}}}}: {part}",
        )
        for part in parts
    )


ALIVE = f"max without (version) ({of('stallscope_build_info')})"
#: The parts that the agent counts as harm.
STANDS_STILL = f'part!~"{"|".join(sorted(NOT_STALLED))}"'
#: The share of the time in which something that is ready does not run.
SUSPENDED = f"""1 - {of("stallscope_cpu_time_ratio", 'part="running"')}"""
ROWS: dict[str, tuple[Panel, ...]] = {
    "The verdict": (
        Panel("Instances", (Query(f"count({ALIVE}) or vector(0)"),), "Agents that are scraped now.", "stat", width=4, height=4),
        Panel(
            "Held up",
            (Query(f"""count(max by (job, instance) ({of("stallscope_finding", 'severity!="info"', 'explained_by=""')})) or vector(0)"""),),
            "Instances on which a finding holds somebody up.", "alarm", width=4, height=4,
        ),
        Panel(
            "Cannot tell",
            (Query(f"""sum({of("stallscope_rule_verdict", 'rule="cpu_suspended"', 'verdict="unknown"')}) or vector(0)"""),),
            "Instances that cannot judge whether the CPU is taken away: nothing there is called healthy.", "alarm", width=4, height=4,
        ),
        Panel(
            "Do not answer",
            (Query(f'count({of("up")} == 0 and max without (version) (last_over_time({of("stallscope_build_info")}[1h]))) or vector(0)'),),
            "Instances that were seen in the last hour and do not answer a scrape now.", "alarm", width=4, height=4,
        ),
        Panel(
            "Threads, connections and waiters that stand still", (Query(f"sum({of_causes('stallscope_finding_stalled')}) or vector(0)"),),
            "For all causes now; what is the effect of another finding is left out, because it holds up the same.", "stat", width=8, height=4,
        ),
        Panel(
            "Findings now",
            (
                Query(f"""count by (rule, severity) ({of("stallscope_finding", 'explained_by=""')})"""),
                Query(f"sum by (rule) ({of_causes('stallscope_finding_stalled')})"),
                Query(f"max by (rule) ({of_causes('stallscope_finding_share_ratio')})"),
            ),
            "Causes, with the number of instances, what stands still for them, and the worst share. What is the effect of another "
            "finding is left out. `stallscope explain RULE` says what it means and what to change.", "table",
        ),
        Panel(
            "Findings over time", (Query(f"""count by (rule) ({of("stallscope_finding", 'severity!="info"', 'explained_by=""')})""", "{{rule}}"),),
            "Instances on which each finding is the cause of somebody's wait.", "stacked",
        ),
    ),
    "What stands still": (
        Panel(
            "Stalled, by cause", (Query(f"sum by (part) ({of('stallscope_stalled', STANDS_STILL)})", "{{part}}"),),
            "Threads, connections and waiters for pools that stand still at any moment, by what holds them up.", "stacked",
        ),
        Panel("By group", (Query(f"sum by (group, part) ({of('stallscope_stalled')})", "{{group}}: {{part}}"),), "All of them: the parts of a group sum to its number.", "stacked"),
    ),
    "The CPU taken away": (
        Panel(
            "Where the time of a ready thread went", (mean("stallscope_cpu_time_ratio", "part"),),
            "Running, or suspended by the CPU limit, the hypervisor, other work, a freeze, or unknown; sums to 100 %.", "stacked", "percentunit",
        ),
        Panel("Length of the gaps", (Query(f"histogram_quantile(0.95, sum by (le) (rate({of('stallscope_suspension_gap_seconds_bucket')}[$__rate_interval])))", "p95"),), "Gaps between two clock reads in which no code ran.", unit="s"),
        Panel("Throttled by the limit", (rate("stallscope_cgroup_throttled_seconds_total", "target, cgroup", "{{target}} {{cgroup}}"),), "Throttled seconds per second, summed over CPUs, of every level.", unit="s"),
        Panel(
            "CPU used, and the limit",
            (rate("stallscope_cgroup_usage_seconds_total", "target", "used: {{target}}"), Query(f"sum by (target) ({of('stallscope_cgroup_cpu_limit_cores')})", "limit: {{target}}"), Query(f"sum by (target) ({of('stallscope_demand_peak_cores')})", "wanted at most: {{target}}")),
            "Cores. What is wanted in short bursts may be far above what is used on average.",
        ),
    ),
    "Databases": (
        Panel("A round trip to PostgreSQL, taken apart", trip("postgres"), "The parts sum to the round trip.", "stacked", "s"),
        Panel("A round trip to Redis, taken apart", trip("redis"), "The parts sum to the round trip.", "stacked", "s"),
        Panel("Sessions by what they wait for", (mean("stallscope_postgres_server_active", "target, wait"),), "Active sessions of the database; running: nothing.", "stacked"),
        Panel("Blocked by a lock", (mean("stallscope_postgres_server_blocked_seconds", "target"),), "How long the oldest of the sessions that wait has waited.", unit="s"),
    ),
    "Connections": (
        Panel(
            "The app's connections",
            tuple(Query(f"avg by (remote) ({of(f'stallscope_connections_{each}_ratio')})", f"{{{{remote}}}}: {each}") for each in ("unread", "waiting", "idle")),
            "Unread: the reply lies in the client's kernel. Waiting: for the other side.", "stacked", "percentunit",
        ),
        Panel(
            "Pools",
            tuple(Query(f"sum by (pool) ({of(f'stallscope_pool_{each}')})", f"{{{{pool}}}}: {each}") for each in ("size", "checked_out", "waiting")),
            "Connections that a pool may have, that are held, and requests that wait for one.",
        ),
    ),
    "Logs and memory": (
        Panel("Entries that wait", (Query(f"sum by (target, queue) ({of('stallscope_log_backlog_entries')})", "{{target}} {{queue}}"),), "Log entries in queues of the app and of collectors."),
        Panel("The oldest of them", (Query(f"max by (target, queue) ({of('stallscope_log_backlog_oldest_seconds')})", "{{target}} {{queue}}"),), "Its age.", unit="s"),
        Panel("Lost", (rate("stallscope_log_backlog_dropped_total", "target, queue", "{{target}} {{queue}}"),), "Entries per second that were thrown away."),
        Panel(
            "Time until the memory limit",
            (Query(f"min by (target) (({of('stallscope_cgroup_memory_limit_bytes')} - {of('stallscope_cgroup_memory_current_bytes')}) / (deriv({of('stallscope_cgroup_memory_current_bytes')}[15m]) > 1024))", "{{target}}"),),
            "As memory grew in the last quarter of an hour; nothing is drawn while it does not grow.", unit="s",
        ),
    ),
    "The fleet (recorded: deploy/prometheus/recording.yaml)": (
        Panel("Suspended share, by how many instances", (Query(f'count_values("suspended", round({SUSPENDED}, 0.05))', "{{suspended}}"),), "How many instances lose so much of the time in which work is ready, in steps of 5 %. The engine counts them, so that ten thousand are 21 series.", "heatmap", "percentunit"),
        Panel(
            "The 40 instances that are suspended most", (Query(f"topk(40, {SUSPENDED})", "{{instance}}"),),
            "A row for each instance, a colour for its suspended share.", "history", "percentunit",
        ),
        Panel(
            "Share of the instances with each finding",
            (Query(f"sum by (rule) (stallscope:finding_causes:count{{{GROUPS}}}) / ignoring (rule) group_left sum(stallscope:instances:count{{{GROUPS}}})", "{{rule}}"),),
            "As a cause that holds somebody up.", unit="percentunit",
        ),
        Panel(
            "The same by revision",
            (Query(f"sum by (job, $revision_label, rule) (stallscope:finding_causes:count{{{GROUPS}}}) / ignoring (rule) group_left sum by (job, $revision_label) (stallscope:instances:count{{{GROUPS}}})"),),
            "Which roll-out brought it.", unit="percentunit",
        ),
        Panel("Instances by revision", (Query(f"sum by (job, $revision_label) (stallscope:instances:count{{{GROUPS}}})"),), "Agents that are scraped.", "stacked"),
        Panel(
            "What cannot be judged",
            (Query(f'sum by (rule) (stallscope:rule_verdicts:count{{verdict="unknown",{GROUPS}}}) / ignoring (rule) group_left sum(stallscope:instances:count{{{GROUPS}}})', "{{rule}}"),),
            "Share of the instances on which a rule is unknown: nobody there is acquitted by it.", unit="percentunit",
        ),
    ),
    "The agents' own cost": (
        Panel("CPU", (Query(f"avg(rate({of('stallscope_agent_cpu_seconds_total')}[$__rate_interval])) * 3600", "mean"), Query(f"max(rate({of('stallscope_agent_cpu_seconds_total')}[$__rate_interval])) * 3600", "most")), "CPU-seconds per hour.", unit="s", width=8),
        Panel("Memory", (Query(f"avg({of('stallscope_agent_resident_memory_bytes')})", "mean"), Query(f"max({of('stallscope_agent_resident_memory_bytes')})", "most")), "Agent and child.", unit="bytes", width=8),
        Panel("Slots", (rate("stallscope_slots_total", "outcome", "{{outcome}}"),), "Per second, by outcome; skipped ones are never caught up.", "stacked", width=8),
    ),
}  # fmt: skip


def queries() -> Iterator[tuple[str, str]]:
    """(panel, query) of everything that is asked, with Grafana's variables in it."""
    for row, panels in ROWS.items():
        for panel in panels:
            for query in panel.queries:
                yield f"{row}: {panel.title}", query.expr
    yield "alerts", ALERTS
