"""One look at the fleet: which questions are put to the engine, in which order, and what they found.

The first three must be answered; what a later one could not tell is noted as not seen.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.commands.fleet import questions
from agent.commands.fleet.engine import LAST, Engine, NoAnswer, Row
from agent.commands.fleet.questions import Question, ask, select
from agent.commands.fleet.selector import Matcher

#: Points of time in the window: the exactness of "since".
STEPS = 120
LEAST_STEP = 30.0
#: From so many instances on their verdicts are asked only of the rules that matter, unless they are recorded.
MANY = 2000
#: Recorded and live numbers of instances may differ by what changed since the rules were evaluated.
NEAR = 0.1
_RULE = re.compile(r"\w{1,80}")

#: Values of the labels that tell groups apart, in their order.
Group = tuple[str, ...]
#: (unix seconds, number) by time.
Points = Sequence[tuple[float, float]]
#: (group, values of the question's own labels) -> its numbers.
Table = dict[tuple[Group, tuple[str, ...]], Points]


@dataclass(slots=True)
class Seen:
    """What was found.  ``by`` are the labels of a group; the last is what the user named, ``word`` is what it is called.

    Tables hold one number each, but for ``alive``, ``held`` and ``cleared``, which hold the window: instances, instances on which a rule is the cause,
    and those on which it is absent.
    """

    by: tuple[str, ...]
    word: str
    start: float
    now: float
    step: float
    recorded: bool = False
    instances: Table = field(default_factory=dict)
    findings: Table = field(default_factory=dict)
    causes: Table = field(default_factory=dict)
    verdicts: Table = field(default_factory=dict)
    asked_rules: frozenset[str] = frozenset()
    """Whose verdicts were asked; empty: of every rule."""
    worst: Table = field(default_factory=dict)
    lost: Table = field(default_factory=dict)
    stalled: Table = field(default_factory=dict)
    worst_at: dict[str, str] = field(default_factory=dict)
    """Rule -> the instance that loses most."""
    silent: Table = field(default_factory=dict)
    """Scraped, and no answer."""
    gone: Table = field(default_factory=dict)
    """Seen in the window, and now no more; those that are silent among them."""
    alive: Table = field(default_factory=dict)
    held: Table = field(default_factory=dict)
    cleared: Table = field(default_factory=dict)
    missed: list[tuple[str, str]] = field(default_factory=list)
    """(what could not be asked, why)."""


class Look:
    """Asks one engine of the instances that match."""

    def __init__(
        self, engine: Engine, matchers: Collection[Matcher], by: str, seconds: float, vital: Collection[str] = ()
    ) -> None:
        self._engine, self._matchers, self._seconds, self._vital = engine, tuple(matchers), seconds, tuple(vital)
        now = engine.now("vector(time())")
        if not now or not seconds < now[0].value <= LAST:
            raise NoAnswer(f"{engine.url}: the engine does not know what time it is")
        self._at = now[0].value
        alive = self._now(
            f"count by ({', '.join(questions.REVISIONS)}) ({select(questions.ALIVE, self._matchers)})",
        )
        label = next((each for each in questions.REVISIONS if any(row.labels.get(each) for row in alive)), by)
        label = label if by == questions.REVISION else by
        groups = (*(each for each in questions.SCOPE if each != label), label)
        step = max(LEAST_STEP, seconds / STEPS)
        self.seen = Seen(groups, by, self._at - seconds, self._at, step)
        self._number = sum(row.value for row in alive)

    def take(self) -> Seen:
        """Everything.  Raises NoAnswer where the first questions have none."""
        seen = self.seen
        seen.recorded = self._is_recorded()
        seen.instances = self._table(questions.INSTANCES)
        seen.findings = self._table(questions.FINDINGS)
        seen.causes = self._table(questions.CAUSES)
        found = sorted({rule for _, (rule, *_) in seen.findings})
        self._ask_verdicts(found)
        self._absent_instances()
        if found:
            self._of_findings(found)
        return seen

    def _ask_verdicts(self, found: Sequence[str]) -> None:
        """Recorded, or of the instances: then, where these are many, only of the rules that matter."""
        seen, what = self.seen, "the rules' verdicts"
        if seen.recorded:
            self._try(what, "verdicts", questions.VERDICTS)
        if not seen.verdicts:
            seen.asked_rules = frozenset((*found, *self._vital) if self._number > MANY else ())
            self._try(what, "verdicts", questions.VERDICTS, rules=sorted(seen.asked_rules), recorded=False)

    def _of_findings(self, found: Sequence[str]) -> None:
        self._try("the worst shares", "worst", questions.WORST)
        self._try("the lost shares", "lost", questions.LOST)
        self._try("what stands still", "stalled", questions.STALLED)
        self._try("the number of instances since then", "alive", questions.INSTANCES, window=True)
        self._try("since when", "held", questions.CAUSES, window=True, rules=found)
        cleared = (Matcher("verdict", "=", "absent"),)
        self._try("who was free of it", "cleared", questions.VERDICTS, window=True, rules=found, more=cleared)
        worst = f'topk by (rule) (1, stallscope_finding_share_ratio{{rule=~"{"|".join(found)}"}})'
        for row in self._optional("which instance is worst", select(worst, self._matchers)):
            name = row.labels.get("pod") or row.labels.get("instance", "")
            self.seen.worst_at.setdefault(row.labels.get("rule", ""), name)

    def _absent_instances(self) -> None:
        """Those that are scraped and do not answer, and those that were there in the window."""
        by = f"count by ({', '.join(self.seen.by)})"
        ever = f"max without (version) (last_over_time(stallscope_build_info{{}}[{self._seconds:.0f}s]))"
        none = Question("")
        for what, name, query in (
            ("instances that do not answer", "silent", f"{by} (up{{}} == 0 and {ever})"),
            ("instances that are gone", "gone", f"{by} ({ever} unless {questions.ALIVE})"),
        ):
            setattr(self.seen, name, self._sorted(none, self._optional(what, select(query, self._matchers))))

    def _is_recorded(self) -> bool:
        """Whether the recorded series tell of all these instances, and of the whole window."""
        labels = {matcher.label for matcher in self._matchers} | set(self.seen.by)
        if not labels <= set(questions.KEPT):
            return False
        recorded = f"sum({questions.INSTANCES.recorded}{{}})"
        now = self._number_of(recorded)
        if not now or abs(now - self._number) > NEAR * self._number:
            return False
        before = (
            f" offset {self._seconds - 2 * self.seen.step:.0f}s"  # rules are evaluated a while after the samples came
        )
        then = self._number_of(f"count(max without (version) (stallscope_build_info{{}}{before}))")
        return not then or self._number_of(f"sum({questions.INSTANCES.recorded}{{}}{before})") >= then * (1 - NEAR)

    def _number_of(self, query: str) -> float:
        rows = self._optional("recorded series", select(query, self._matchers))
        return rows[0].value if rows else 0.0

    def _now(self, query: str) -> list[Row]:
        return self._engine.now(query, self._at)

    def _optional(self, what: str, query: str) -> list[Row]:
        try:
            return self._now(query)
        except NoAnswer as reason:
            self.seen.missed.append((what, f"{reason}"))
            return []

    def _try(self, what: str, name: str, question: Question, **options: Any) -> None:
        try:
            setattr(self.seen, name, self._table(question, **options))
        except NoAnswer as reason:
            self.seen.missed.append((what, f"{reason}"))

    def _table(
        self, question: Question, *, window: bool = False, rules: Collection[str] = (), more: Iterable[Matcher] = (),
        recorded: bool = True,
    ) -> Table:  # fmt: skip
        seen = self.seen
        query = ask(question, seen.by, (*self._matchers, *more), recorded=seen.recorded and recorded, rules=rules)
        rows = self._engine.over(query, seen.start, seen.now, seen.step) if window else self._now(query)
        return self._sorted(question, rows)

    def _sorted(self, question: Question, rows: Iterable[Row]) -> Table:
        """By group and labels; what no rule could be called is left out."""
        table: Table = {}
        for row in rows:
            labels = tuple(row.labels.get(each, "") for each in question.labels)
            if not question.labels or _RULE.fullmatch(labels[0]):
                table[tuple(row.labels.get(each, "") for each in self.seen.by), labels] = row.points
        return table
