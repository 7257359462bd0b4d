"""The sentences of a fleet's report."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from agent.commands.fleet.fleet_report import FleetFinding, Part
from agent.commands.fleet.look import Group, Seen
from probes.labels import printable

#: Groups that a sentence names.
NAMED = 3


class Names:
    """What groups are called: by what the user named, and by what else tells them apart."""

    def __init__(self, seen: Seen) -> None:
        groups = {group for table in (seen.instances, seen.alive, seen.gone, seen.silent) for group, _ in table}
        self._by, self._word = seen.by, seen.word
        self._telling = [at for at in range(len(seen.by) - 1) if len({group[at] for group in groups}) > 1]

    def __getitem__(self, group: Group) -> str:
        last = printable(group[-1], 80)
        words = [f"{self._word} {last}"] if last else []
        words += [f"{self._by[at]} {printable(group[at], 80)}" for at in self._telling if group[at]]
        return " of ".join(words)


def of_finding(title: str, parts: Sequence[Part], now: float) -> str:
    """Where it is, since when, and where it is not."""
    held = [part for part in parts if part.held]
    if not held:
        harmless = [part for part in parts if part.harmless]
        said = ", ".join(f"{part.harmless} of {_of(part)}" for part in harmless[:NAMED])
        return f"{title} on {said}{more(harmless)}; nobody is slow because of it now."
    if len(held) > NAMED:
        return _of_many(title, parts, held, now)
    said = "; ".join(f"{part.held} of {_of(part)}{since(part, now)}{rest(part)}" for part in held)
    free = [part for part in parts if part.was_free and part.name and not part.unknown]
    now_free, then_free = [p.name for p in free if p.instances], [p.name for p in free if not p.instances]
    others = [f"{listed(now_free)} {'is' if len(now_free) == 1 else 'are'} free of it"] if now_free else []
    others += [f"{listed(then_free)} {'was' if len(then_free) == 1 else 'were'} free of it"] if then_free else []
    over = [part for part in parts if part.until and part.name]
    others += [f"{part.name} had it until {clock(part.until, now)}" for part in over[:NAMED]]
    return "; ".join((f"{title} on {said}", *others)) + "."


def _of_many(title: str, parts: Sequence[Part], held: Sequence[Part], now: float) -> str:
    """Where it is, when a sentence cannot name every group; ``held`` begins with those that have most."""
    first = min((part for part in held if part.since), key=lambda part: part.since or "", default=held[0])
    groups = sum(part.instances > 0 for part in parts)
    return (
        f"{title} on {sum(part.held for part in held)} of {instances(sum(part.instances for part in parts))}, in {len(held)} of {groups} groups"
        f"{since(first, now)}: {listed([part.name for part in held])}."
    )


def of_fleet(findings: Sequence[FleetFinding], number: int, blind: int, *, healthy: bool) -> str:
    """The verdict.  ``blind``: instances of groups of which too few can be judged."""
    harmful = [each for each in findings if each.severity != "info"]
    if harmful:
        return harmful[0].sentence + (f" Also: {_listed(harmful[1:])}." if harmful[1:] else "")
    known = f" Worth knowing as well: {_listed(findings)}." if findings else ""
    return _without_harm("finding that holds anybody up" if findings else "finding", number, blind, healthy) + known


def _without_harm(finding: str, number: int, blind: int, healthy: bool) -> str:
    if not number:
        return "Cannot tell: no instance of stallscope is seen there."
    if healthy:
        return f"No {finding} on any of {instances(number)}."
    why = f"{blind} cannot tell" if blind else "not all that was asked was answered"
    return f"Cannot tell: no {finding} on those of {instances(number)} that can be judged, and {why}."


def _listed(findings: Sequence[FleetFinding]) -> str:
    """The first of them inside a sentence, and on how many instances."""
    said = "; ".join(f"{each.title[0].lower()}{each.title[1:]} on {each.instances}" for each in findings[:NAMED])
    return said + more(findings)


def rest(part: Part) -> str:
    """What is known of the other instances of a group."""
    counted = (
        (part.absent, "free of it"), (part.harmless, "with it and no harm"), (part.effect, "with it as an effect"), (part.unknown, "cannot tell"),
    )  # fmt: skip
    said = [f"{number} {words}" for number, words in counted if number]
    return f" ({', '.join(said)})" if said else ""


def since(part: Part, now: float) -> str:
    """Since when this group is held."""
    if part.since is None:
        return ""
    return f" since {'before ' if part.before else ''}{clock(part.since, now)}"


def clock(time: str | None, now: float) -> str:
    """The hour and minute of an RFC 3339 time, with its day where that is another than now's."""
    if time is None:
        return "an unknown time"
    at, today = datetime.fromisoformat(time), datetime.fromtimestamp(now, UTC)
    return at.strftime("%H:%M UTC" if at.date() == today.date() else "%d %b %H:%M UTC")


def listed(names: Sequence[str]) -> str:
    """The first of them."""
    return ", ".join(names[:NAMED]) + more(names)


def more(items: Sequence[object]) -> str:
    """How many were not named."""
    return f" and {len(items) - NAMED} more" if len(items) > NAMED else ""


def instances(number: int) -> str:
    """So many."""
    return f"{number} instance{'s' * (number != 1)}"


def _of(part: Part) -> str:
    return instances(part.instances) + (f" of {part.name}" if part.name else "")
