"""Was it right?  What a run was told, against what the scenario says is true.

Pure: records in, outcomes out. A finding that appears outside its stall is as false as one that never should.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tests.lab.episode import Record
from tests.lab.scenario import DUE, NAMES, Expectation, Scenario

Outcome = Literal["hit", "miss", "false alarm", "unknown", "right", "either"]
#: Where the host took more than this of all CPUs a stall of its own was beside the one that was made: judged, and counted apart.
SPOILT_SHARE = 0.05
#: Where it took more than this, its stall was the larger one, and the run tells nothing.
LOST_SHARE = 0.35
#: Throttled seconds per second; an 80 % quota under a busy thread makes 0.2.
MET_SHARE = 0.05
#: From here on what the host took is a true finding, and not of the scenario's making.
STOLEN_SHARE = 0.01
#: The same of its worst half minute, which is what the agents speak of.
MOST_STOLEN_SHARE = 0.02
#: From here on a busy thread outside every scenario lost so much that the machine was crowded (by other runs).
CROWDED_SHARE = 0.1
#: In a guest that is what its host takes, of which ``cpu_stolen`` speaks from here on (its own threshold).
CROWDED_GUEST_SHARE = 0.05
#: What is true on a crowded machine, and on one whose host takes its CPUs: told by its own kernel, and in sandboxes and guests, which cannot see by whom.
#: A server that waits for a CPU is starved, and so is an agent beside it.
CROWDED_RULES = {
    "plain": {"cpu_contended", "proxy_or_server_starved", "client_suspended_holding_connection"},
    "gvisor": {"cpu_suspended", "client_suspended_holding_connection"},
    "guest": {"cpu_stolen", "cpu_suspended", "client_suspended_holding_connection"},
}
#: Where the machine stood still for so long, outside every scenario too, it was frozen indeed.
FREEZE_SECONDS = 1.0
#: From this age of the oldest entry on a log queue really was one, whoever made it: on a crowded machine the log service
#: is slow by itself, and a client that is refused may get stuck.
LATE_SECONDS = 5.0
#: Told on every kernel in its own words: what the verdict blames.
CULPRITS: Mapping[str, str] = {
    "cpu_throttled_between_requests": "between requests",
    "cpu_quota_throttled": "quota",
    "cpu_stolen": "hypervisor",
    "cpu_suspended": "suspended, cause unseen",
    "cpu_contended": "contention",
    "instance_frozen": "freeze",
    "database_unreachable": "unreachable",
    "redis_unreachable": "unreachable",
    "connections_exhausted": "no connection left",
    "too_many_queries": "too many queries",
    "connection_per_query": "connection per query",
    "database_slow": "slow statements",
    "redis_slow": "slow statements",
    "database_locked": "lock",
    "network_slow": "network",
    "proxy_or_server_starved": "starved server",
    "waiting_for_database": "the other side",
    "client_suspended_holding_connection": "client suspended",
    "client_not_reading": "client does not read",
    "client_cpu_bound": "client computes",
    "cpu_limit_unusable": "cores unusable",
    "runtime_oversubscribed": "too many threads",
    "connections_held_by_app": "held by the app",
    "pool_saturated": "pool",
    "log_queue_in_memory": "log queue",
    "log_pipe_blocked": "reader of stdout",
    "log_files_in_memory": "log files",
    "log_entries_dropped": "entries dropped",
    "logs_lost_at_exit": "lost at exit",
    "memory_near_limit": "memory",
    "log_quota_exceeded": "log quota",
    "log_delivery_late": "late delivery",
}
NOBODY, CANNOT_TELL = "nobody", "cannot tell"
#: An end this close to the lift is the lift: the two are noted one after the other.
TOGETHER_SECONDS = 1.0
#: The span of the breakdown on /health, seconds.
BREAKDOWN_SECONDS = 60.0


@dataclass
class Score:
    """One run, judged."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    """Rule -> outcome, every rule."""
    why: dict[str, str] = field(default_factory=dict)
    """Rule -> what was wrong."""
    found_seconds: dict[str, float] = field(default_factory=dict)
    cleared_seconds: dict[str, float] = field(default_factory=dict)
    culprit: str = NOBODY
    """Whom the report blamed at the end of the stall."""
    estimate_error: float | None = None
    """Suspended share told, less the true one (both over the breakdown's span)."""

    @property
    def right(self) -> bool:
        """Every rule had a right answer; an unknown where an answer was due is not right, and not wrong."""
        return all(outcome in {"hit", "right", "either"} for outcome in self.outcomes.values())

    @property
    def wrong(self) -> bool:
        """Something false was said, or something true was denied."""
        return any(outcome in {"miss", "false alarm"} for outcome in self.outcomes.values())


def disturbed(record: Record) -> bool:
    """Whether the host took CPUs enough for somebody to stand still for want of them."""
    return record.stolen > SPOILT_SHARE


def usable(scenario: Scenario, record: Record) -> bool:
    """Whether the run says anything about the agent: it took place, on a machine that had its CPUs, as it was meant.

    Beside other runs a busy app may get less CPU than its quota: then the kernel throttled nobody, and there was no stall.
    """
    onset = next(step for step in scenario.timeline if step.mark == "onset")
    meant = scenario.culprit == "quota" and onset.app == "busy" and scenario.environment != "guest"
    met = not meant or record.truth.get("throttled", 1.0) >= MET_SHARE
    return not record.skipped and record.stolen <= LOST_SHARE and met


def score(scenario: Scenario, record: Record) -> Score:
    """Judge one run. One that failed to give a report misses everything that was due."""
    result = Score()
    for rule in NAMES:
        outcome, why = _judge(scenario, record, rule, result)
        result.outcomes[rule] = outcome
        if why:
            result.why[rule] = why
    report = record.reports.get("lift", {})
    # What is true of the crowded machine as well is no answer to who did this, and a remark blames nobody.
    crowd = {rule for rule, outcome in result.outcomes.items() if outcome == "either"}
    crowd |= {rule for rule, word in scenario.expect.items() if word == "remark" and result.outcomes[rule] == "right"}
    causes = [each for each in report.get("findings", []) if each.get("explained_by") in {None, *crowd}]
    blamed = [finding for finding in causes if finding["rule"] not in crowd]
    if blamed:
        result.culprit = CULPRITS.get(blamed[0]["rule"], blamed[0]["rule"])
    elif report.get("status") != "pass" and not causes:
        result.culprit = CANNOT_TELL
    result.estimate_error = _estimate_error(scenario, record)
    return result


def _judge(scenario: Scenario, record: Record, rule: str, result: Score) -> tuple[Outcome, str]:
    expected = scenario.expected(rule)
    true_too = _true_too(scenario, record, expected)
    present = list(_intervals(record, rule))
    early = any(begin <= record.marks.get("onset", 0.0) for begin, _ in present)
    if rule in true_too and (expected not in DUE or early):
        expected = "either"
    state = _state(record, "lift", rule)
    if expected == "either":
        return "either", ""
    if expected in DUE:
        return _due(record, rule, present, expected, result, crowded=rule in true_too)
    if expected == "remark":
        if present and {_severity(record, mark, rule) for mark in record.reports} - {""} == {"info"}:
            return "right", ""
        expected = "absent"
    if present:
        return "false alarm", f"said at {present[0][0]:.0f} s: {_evidence(record, rule)}"
    if expected == "silent":
        return "right", ""
    if state == expected:
        return "right", ""
    if state == "unknown":
        return "unknown", _because(record, rule)
    return "miss", f"was {state or 'not told'}, should be {expected}"


def _true_too(scenario: Scenario, record: Record, expected: Expectation) -> set[str]:
    """What is true of the machine, or of the service that it writes to, beside what the scenario does."""
    stolen = record.stolen >= STOLEN_SHARE or record.stolen_most >= MOST_STOLEN_SHARE
    true_too = {"cpu_stolen"} if stolen else set()
    if disturbed(record):
        true_too.add("cpu_suspended")
    if record.crowded >= CROWDED_SHARE or disturbed(record):
        true_too |= CROWDED_RULES[scenario.environment]
    if scenario.environment == "guest" and record.crowded >= CROWDED_GUEST_SHARE:
        true_too.add("cpu_stolen")
    if record.stood_still >= FREEZE_SECONDS:
        true_too.add("instance_frozen")
    marks = ("onset", "end") if expected in DUE else ("onset", "lift", "end")
    if any(record.truth.get(f"oldest_{mark}", 0.0) >= LATE_SECONDS for mark in marks):
        true_too |= {"log_queue_in_memory", "log_delivery_late"}
    return true_too


def _due(
    record: Record,
    rule: str,
    present: Sequence[tuple[float, float]],
    expected: Expectation,
    result: Score,
    *,
    crowded: bool,
) -> tuple[Outcome, str]:
    onset, lift = record.marks.get("onset", 0.0), record.marks.get("lift", 0.0)
    if early := [begin for begin, _ in present if begin <= onset and lift > onset]:
        return "false alarm", f"said at {early[0]:.0f} s, before the onset at {onset:.0f} s"
    found = [begin for begin, _ in present if onset < begin <= lift]
    if not found and not present and _state(record, "lift", rule) == "present":
        present = [(lift, float("inf") if _state(record, "end", rule) == "present" else lift)]
        found = [lift]  # its line was dropped, as all are that a full pipe would hold up; the report has it
    if not found:
        state = _state(record, "lift", rule)
        if state == "unknown":
            return "unknown", _because(record, rule)
        return "miss", f"was {state or 'not told'} at the end of the stall"
    result.found_seconds[rule] = round(found[0] - onset, 2)
    if _state(record, "lift", rule) != "present":
        return "miss", f"found after {found[0] - onset:.0f} s, and dropped before the stall ended"
    if expected != "lasting" and record.marks["end"] > lift + TOGETHER_SECONDS:
        end = next(end for begin, end in present if end >= lift)
        if end == float("inf") and _state(record, "end", rule) in {"absent", "unknown"}:
            end = record.marks["end"]  # its line was not heard; the report is of then
        if end == float("inf"):
            if crowded or (expected == "eases" and _severity(record, "end", rule) == "info"):
                return "hit", ""
            return "false alarm", f"still said {record.marks['end'] - lift:.0f} s after the stall"
        result.cleared_seconds[rule] = round(end - lift, 2)
    return "hit", ""


def _intervals(record: Record, rule: str) -> Iterator[tuple[float, float]]:
    """From when until when it was a finding; infinity: it still was when the run ended."""
    begin: float | None = None
    for at, name, now, _ in record.said:
        if name == rule and now == "present" and begin is None:
            begin = at
        elif name == rule and now != "present" and begin is not None:
            yield begin, at
            begin = None
    if begin is not None:
        yield begin, float("inf")


def _state(record: Record, mark: str, rule: str) -> str:
    report = record.reports.get(mark, {})
    for key, state in (("findings", "present"), ("ruled_out", "absent"), ("unknown", "unknown")):
        if any(each["rule"] == rule for each in report.get(key, [])):
            return state
    return ""


def _severity(record: Record, mark: str, rule: str) -> str:
    findings = record.reports.get(mark, {}).get("findings", [])
    return next((finding["severity"] for finding in findings if finding["rule"] == rule), "")


def _because(record: Record, rule: str) -> str:
    unknown: Iterable[Mapping[str, str]] = record.reports.get("lift", {}).get("unknown", [])
    return next((each["because"] for each in unknown if each["rule"] == rule), "")


def _evidence(record: Record, rule: str) -> str:
    return next((evidence[0] for _, name, now, evidence in record.said if name == rule and now == "present"), "")


def _estimate_error(scenario: Scenario, record: Record) -> float | None:
    """Told against measured, where one busy thread wanted a CPU for the whole stall.

    What the thread did not get of one CPU is what it was suspended: 1 - usage of its group, which the host
    counts. The breakdown looks back over a fixed span, so a shorter stall is no measure. Inside a guest the
    host cannot see the inner quota at work, and the quota itself is the truth.
    """
    told = record.reports.get("lift", {}).get("breakdown", {}).get("cpu", {})
    stall = next(step for step in scenario.timeline if step.mark == "onset")
    busy = [step.app for step in scenario.timeline if step.app and step.at <= stall.at][-1:] == ["busy"]
    held = stall.quota not in {None, "none"} or stall.inner_quota not in {None, "none"}
    if not told or not busy or not held or scenario.command != "run" or scenario.agent == "sidecar":
        return None
    if record.marks["lift"] - record.marks["onset"] < BREAKDOWN_SECONDS + 5:
        return None
    usage = record.truth["usage"]
    if isinstance(stall.inner_quota, float):
        if isinstance(stall.quota, float):
            return None  # two limits, one behind the other: no counter knows what one thread got
        usage = stall.inner_quota
    suspended = sum(share for part, share in told.items() if part != "running")
    return float(round(suspended - max(0.0, 1.0 - usage), 4))
