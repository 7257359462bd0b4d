"""What the answer for a fleet does not hold: questions without an answer, instances without one, rules that agents cannot judge."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from agent.commands.fleet import questions
from agent.commands.fleet.look import Seen, Table
from agent.commands.fleet.sentences import NAMED, Names, instances, listed, more
from agent.report import CannotSee
from probes.reading import Code


def cannot_see(seen: Seen, names: Names, warnings: Sequence[str], found: Collection[str]) -> Iterator[CannotSee]:
    """Everything that is known to be missing; ``found`` are the rules that some instance has found."""
    for what, why in seen.missed:
        yield CannotSee(what, why, "", code=Code.UNREACHABLE)
    for warning in warnings:
        yield CannotSee(
            "part of the series", f"the engine says: {warning}", "its stores and its limits", code=Code.PARTIAL
        )
    yield from _instances(seen, names)
    if not seen.instances:
        yield CannotSee(
            "every instance", "no series stallscope_build_info has such labels now",
            "--match, and whether this engine scrapes /metrics of the agents",
            code=Code.UNREACHABLE,
        )  # fmt: skip
    elif not any(group[-1] for group, _ in seen.instances):
        label = questions.REVISIONS if seen.by[-1] in questions.REVISIONS else seen.by[-1:]
        yield CannotSee(
            f"which {seen.word} an instance is of", f"its series have no label {' or '.join(label)}",
            "--by LABEL, or a relabelling where they are scraped", code=Code.CANNOT_COUNT,
        )  # fmt: skip
    if seen.asked_rules:
        yield CannotSee(
            "what else these instances cannot judge", "not asked of so many, because their verdicts are not recorded",
            "deploy/prometheus/recording.yaml", code=Code.NOT_CONFIGURED,
        )  # fmt: skip
    yield from _rules(seen, found)


def _instances(seen: Seen, names: Names) -> Iterator[CannotSee]:
    silent = {group: _now(seen.silent, group) for group, _ in seen.silent}
    gone = {group: _now(seen.gone, group) - silent.get(group, 0) for group, _ in seen.gone}
    for counted, because, remedy in (
        (silent, "scraped, and no answer (up is 0)", "whether they run: one that is stopped most of the time misses scrapes too"),
        (gone, "scraped earlier in this time and no more: they ended, or nobody scrapes them", "the last log lines of their agents"),
    ):  # fmt: skip
        some = [(number, names[group]) for group, number in counted.items() if number > 0]
        if some:
            where = ", ".join(f"{number} of {name}" for number, name in some[:NAMED] if name)
            what = instances(sum(number for number, _ in some))
            yield CannotSee(what + (f" ({where}{more(some)})" if where else ""), because, remedy, code=Code.UNREACHABLE)


def _rules(seen: Seen, found: Collection[str]) -> Iterator[CannotSee]:
    """Rules that agents cannot judge where they stand: those that are found elsewhere first, then by how many cannot."""
    unknown: defaultdict[str, int] = defaultdict(int)
    for group, (rule, state) in seen.verdicts:
        if state == "unknown":
            unknown[rule] += _now(seen.verdicts, group, (rule, state))
    number = sum(_now(seen.instances, group) for group, _ in seen.instances)
    alike: defaultdict[tuple[bool, int], list[str]] = defaultdict(list)
    for rule, count in unknown.items():
        if count:
            alike[rule not in found, -count].append(rule)
    said = [
        f"{listed(sorted(rules))} on {'all' if -count >= number else -count} of {number} instances"
        for (_, count), rules in sorted(alike.items())
    ]
    if said:
        yield CannotSee(
            "; ".join(said),
            "the agents there cannot judge it",
            "stallscope report INSTANCE says why and what would show it",
            code=Code.UNSPECIFIED,
        )


def _now(table: Table, group: tuple[str, ...], labels: tuple[str, ...] = ()) -> int:
    points = table.get((group, labels), ())
    return round(points[-1][1]) if points else 0
