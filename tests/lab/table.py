"""The tables that a lab run leaves: per scenario, per finding, whom it blamed, and what others would have said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from probes.averages import wilson
from tests.lab import rivals
from tests.lab.episode import Record
from tests.lab.scenario import ACCESSES, DUE, NAMES, Scenario
from tests.lab.score import (
    CANNOT_TELL,
    CROWDED_SHARE,
    CULPRITS,
    LOST_SHARE,
    NOBODY,
    SPOILT_SHARE,
    Outcome,
    Score,
    disturbed,
    score,
    usable,
)


class Cell(NamedTuple):
    """A scenario and its runs, judged."""

    scenario: Scenario
    runs: tuple[tuple[Record, Score], ...]
    spoilt: tuple[Record, ...]
    skipped: str

    def found_seconds(self, rule: str) -> list[float]:
        """From onset to finding, of the runs in which it was found."""
        return [one.found_seconds[rule] for _, one in self.runs if rule in one.found_seconds]

    def cleared_seconds(self, rule: str) -> list[float]:
        """From lift to the finding's end."""
        return [one.cleared_seconds[rule] for _, one in self.runs if rule in one.cleared_seconds]

    def estimate_errors(self) -> list[float]:
        """Told less true suspended share, percentage points."""
        return [100 * one.estimate_error for _, one in self.runs if one.estimate_error is not None]

    def outcomes(self, *kinds: Outcome) -> Counter[str]:
        """Rule -> in how many runs its outcome was one of these."""
        return Counter(rule for _, one in self.runs for rule, outcome in one.outcomes.items() if outcome in kinds)


def cells(scenarios: Iterable[Scenario], records: Sequence[Record]) -> list[Cell]:
    """Scenarios that were tried, with their runs."""
    found = []
    for scenario in scenarios:
        mine = [record for record in records if record.scenario == scenario.id]
        good = tuple((record, score(scenario, record)) for record in mine if usable(scenario, record))
        skipped = next((record.skipped for record in mine if record.skipped), "")
        spoilt = tuple(record for record in mine if not usable(scenario, record) and not record.skipped)
        if mine:
            found.append(Cell(scenario, good, spoilt, skipped))
    return found


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(str(each) for each in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _span(values: Sequence[float], form: str = "{:.1f}") -> str:
    """Median and worst."""
    if not values:
        return ""
    middle, worst = form.format(median(values)), form.format(max(values, key=abs))
    return middle if middle == worst else f"{middle} ({worst})"


def _counts(counter: Mapping[str, int]) -> str:
    return ", ".join(f"`{rule}` {count}" for rule, count in counter.items())


def by_scenario(found: Sequence[Cell]) -> str:
    """Hits, misses, unknowns and false alarms of each cell."""
    header = (
        "where", "scenario", "true", "runs", "all right", "hits", "misses", "unknown", "false alarms",
        "found after s", "gone after s", "estimate error pp",
    )  # fmt: skip
    rows = []
    for cell in found:
        scenario = cell.scenario
        if not cell.runs:
            rows.append(
                (
                    scenario.environment,
                    scenario.id,
                    scenario.culprit,
                    0,
                    cell.skipped or "spoilt by the host",
                    *[""] * 7,
                )
            )
            continue
        due = [rule for rule in NAMES if scenario.expected(rule) in DUE]
        hits = cell.outcomes("hit")
        rows.append(
            (
                scenario.environment, scenario.id, scenario.culprit, len(cell.runs),
                sum(one.right for _, one in cell.runs),
                ", ".join(f"`{rule}` {hits[rule]}" for rule in due), _counts(cell.outcomes("miss")),
                _counts(cell.outcomes("unknown")), _counts(cell.outcomes("false alarm")),
                ", ".join(filter(None, (_span(cell.found_seconds(rule)) for rule in due))),
                ", ".join(filter(None, (_span(cell.cleared_seconds(rule)) for rule in due))),
                _span(cell.estimate_errors(), "{:+.1f}"),
            )
        )  # fmt: skip
    return markdown(header, rows)


def most_likely_at_most(count: int, of: int) -> float:
    """Upper end of Wilson's 95 % interval for a share of which ``count`` of ``of`` were seen; 1.0 without any."""
    return wilson(count / of if of else 0.0, of)[1]


def blamed_wrongly(scenario: Scenario, one: Score) -> bool:
    """Whether the first cause of the report was neither the culprit nor anything else that is true there."""
    true = {CULPRITS.get(rule, rule) for rule, outcome in one.outcomes.items() if outcome in ("hit", "either")}
    return one.culprit not in {scenario.culprit, NOBODY, CANNOT_TELL, *true}


def by_environment(found: Sequence[Cell]) -> str:
    """How often it was right in each environment, whom it blamed, and how often it left the healthy alone."""
    groups: dict[str, list[tuple[Scenario, Score]]] = {}
    for cell in found:
        access = f", {cell.scenario.access}" if cell.scenario.access else ""
        for record, one in cell.runs:
            host = _DISTURBED if disturbed(record) else ""
            groups.setdefault(f"{cell.scenario.environment}{access}{host}", []).append((cell.scenario, one))
    rows = []
    for name, runs in sorted(groups.items()):
        ill = [(scenario, one) for scenario, one in runs if scenario.culprit != NOBODY]
        well = [one for scenario, one in runs if scenario.culprit == NOBODY]
        wrong = sum(blamed_wrongly(scenario, one) for scenario, one in runs)
        rows.append((
            name, len(runs), f"{sum(one.right for _, one in runs)}",
            f"{sum(one.culprit == scenario.culprit for scenario, one in ill)} of {len(ill)}",
            wrong, f"{most_likely_at_most(wrong, len(runs)):.1%}",
            f"{sum(one.culprit in (NOBODY, CANNOT_TELL) for one in well)} of {len(well)}", _grounded(runs),
        ))  # fmt: skip
    header = (
        "where", "runs", "every rule right", "right culprit first", "wrong culprit", "at most (95 %)", "healthy left alone",
        "share told within 10 points of the true one",
    )  # fmt: skip
    return markdown(header, rows)


_DISTURBED = f", the host took more than {SPOILT_SHARE:.0%} of the CPUs"
#: A share told is grounded when it is so close to the one that was measured from outside.
GROUNDED = 0.1


def _grounded(runs: Sequence[tuple[Scenario, Score]]) -> str:
    errors = [abs(one.estimate_error) for _, one in runs if one.estimate_error is not None]
    return f"{sum(error <= GROUNDED for error in errors)} of {len(errors)}" if errors else ""


def by_finding(found: Sequence[Cell]) -> str:
    """Over all runs: how often each finding was right and wrong."""
    total = {kind: sum((cell.outcomes(kind) for cell in found), Counter()) for kind in _OUTCOMES}
    rows = []
    asked = {rule for cell in found for rule in cell.scenario.expect}
    for rule in (rule for rule in NAMES if rule in asked or total["false alarm"][rule]):
        seconds = [value for cell in found for value in cell.found_seconds(rule)]
        rows.append((f"`{rule}`", *(total[kind][rule] for kind in _OUTCOMES), _span(seconds)))
    return markdown(("finding", *_OUTCOMES.values(), "found after s, median (worst)"), rows)


_OUTCOMES: Mapping[Outcome, str] = {
    "hit": "hits",
    "miss": "misses",
    "false alarm": "false alarms",
    "unknown": "unknown where an answer was due",
    "right": "rightly not said",
    "either": "either was true",
}


def confusion(found: Sequence[Cell]) -> str:
    """Whom the report blamed first at the end of the stall, by what was true; a table for each access to a database."""
    accesses = sorted({cell.scenario.access for cell in found}, key=("", *ACCESSES).index)
    tables = [(access, _confusion([cell for cell in found if cell.scenario.access == access])) for access in accesses]
    return "\n".join(f"{_ACCESS[access]}:\n\n{text}" if access else text for access, text in tables)


def _confusion(found: Sequence[Cell]) -> str:
    counts: dict[str, Counter[str]] = {}
    for cell in found:
        for _, one in cell.runs:
            counts.setdefault(cell.scenario.culprit, Counter())[one.culprit] += 1
    told = sorted({name for counter in counts.values() for name in counter}, key=lambda name: (name == NOBODY, name))
    rows = [(f"**{true}**", *(counter[name] or "" for name in told)) for true, counter in sorted(counts.items())]
    return markdown(("true \\ blamed", *told), rows)


_ACCESS = {
    "network": "Database scenarios, a sidecar that shares the network namespace",
    "processes": "Database scenarios, a sidecar that shares the PID namespace too",
    "role": "Database scenarios, such a sidecar with a role in the database",
    "inside": "Database scenarios, an agent inside the app's container, with that role",
}


def side_by_side(found: Sequence[Cell]) -> str:
    """The same stalls as others would see them: in how many runs each one fired."""
    rows = []
    for cell in found:
        if cell.scenario.command != "run" or cell.scenario.access or cell.scenario.logs or not cell.runs:
            continue  # rivals look at the CPU, and from inside
        told = [
            rivals.opinions(record.loads, record.marks["onset"], record.marks["lift"])
            for record, _ in cell.runs
            if "lift" in record.marks
        ]
        row: list[str] = []
        for name in rivals.RIVALS:
            row.append(_opinion(name, [each[name] for each in told if name in each]))
        right = sum(one.right for _, one in cell.runs)
        rows.append(
            (
                cell.scenario.environment,
                cell.scenario.id,
                cell.scenario.culprit,
                f"{right} of {len(cell.runs)} right",
                *row,
            )
        )
    return markdown(("where", "scenario", "true", "stallscope", *rivals.RIVALS), rows)


def _opinion(name: str, opinions: Sequence[rivals.Opinion]) -> str:
    if not opinions:
        return "nothing to look at"
    fired = [each for each in opinions if each.fires]
    if all(each.fires is None for each in opinions):
        return f"blind: {opinions[0].why}"
    values = [each.value for each in fired or opinions if each.value is not None]
    if name == "CPUThrottlingHigh":
        said = f"after {median(values):.2f} min" if fired else "never"
        said += f"; {opinions[0].why}" if opinions[0].why else ""
    else:
        said = f"{median(values):.0%}" if values else ""
    return f"{'fires' if fired else 'silent'} {len(fired)} of {len(opinions)} ({said})"


def mistakes(found: Sequence[Cell]) -> str:
    """Every wrong or missing answer with what the agent said for itself."""
    lines = []
    for cell in found:
        for record, one in cell.runs:
            lines += [
                f"- {cell.scenario.environment}, {cell.scenario.id}, run {record.repeat}: `{rule}` {one.outcomes[rule]}: {why}"
                for rule, why in one.why.items()
            ]
            if record.failed:
                lines.append(
                    f"- {cell.scenario.environment}, {cell.scenario.id}, run {record.repeat}: {record.failed[:200]}"
                )
    return "\n".join(lines) + "\n" if lines else "None.\n"


def whole(found: Sequence[Cell]) -> str:
    """All tables, as lab-results/ has them."""
    runs = sum(len(cell.runs) for cell in found)
    right = sum(one.right for cell in found for _, one in cell.runs)
    wrong = sum(one.wrong for cell in found for _, one in cell.runs)
    spoilt = sum(len(cell.spoilt) for cell in found)
    apart = sum(disturbed(record) for cell in found for record, _ in cell.runs)
    crowded = sum(record.crowded >= CROWDED_SHARE for cell in found for record, _ in cell.runs)
    return (
        f"{runs} runs of {len(found)} cells: {right} right, {wrong} wrong, {runs - right - wrong} with an unknown "
        f"where an answer was due. Left out: {spoilt} in which the host took more than {LOST_SHARE:.0%} of this machine's CPUs, or a busy app never met its quota. "
        f"In {apart} it took more than {SPOILT_SHARE:.0%}: a stall beside the one that was made; they have rows of their own. "
        f"In {crowded} the runs crowded each other: a busy thread without any limit lost more than "
        f"{CROWDED_SHARE:.0%} of its time in the worst half minute.\n"
        f"\n## By environment\n\n{by_environment(found)}\n## By scenario\n\n{by_scenario(found)}\n## By finding\n\n{by_finding(found)}"
        f"\n## Whom it blamed\n\n{confusion(found)}\n## Beside what one would have instead\n\n{side_by_side(found)}"
        f"\n## Every answer that was not right\n\n{mistakes(found)}"
    )


#: A page keeps what stands above this line; the tables follow it.
MARK = "<!-- Below: python -m tests.lab --again RECORDS --page THIS-FILE -->"


def page(text: str, found: Sequence[Cell]) -> str:
    """The page with new tables.  Raises ValueError when it has no mark."""
    if MARK not in text:
        raise ValueError(f"the page has no line {MARK!r}")
    records = [record for cell in found for record, _ in cell.runs]
    began = sorted(record.began for record in records)
    commits = Counter(record.commit for record in records)
    told = ", ".join(f"`{commit}` ({count} runs)" for commit, count in commits.most_common())
    span = f"{began[0]} to {began[-1]}" if began else "never"
    return f"{text.partition(MARK)[0]}{MARK}\n\nRun {span}, agent of commit {told}.\n\n{whole(found)}"
