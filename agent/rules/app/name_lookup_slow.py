"""Looking a name up takes long: a slow name server, answers that get lost, or a search list that multiplies the questions.

The agent asks the name servers itself, about the names of the configured databases; what its own process sleeps meanwhile is
not counted, since the kernel stamps each answer.  Look-alikes: a name server that had to ask others once (the same look-up is
quick when it is repeated at once), a single lost datagram, and an agent that was held or frozen while it waited.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.history import History
from agent.report import Advice, Evidence, Severity
from agent.rules import targets
from agent.rules.confidence import not_measured
from agent.rules.rule import Absent, Judgement, Present, Rule, Threshold, Unknown
from agent.rules.words import duration
from agent.views import place
from agent.views.taken import held_between, taken_from_group
from probes.averages import fmean
from probes.names import probe as names
from probes.names.probe import NamesReading
from probes.reading import Code, Unseen

SPAN, LATEST = 600.0, 3
SLOW = Threshold(
    "time of a look-up from which it is slow",
    names.SLOW_SECONDS,
    "seconds",
    "a name server nearby answers in 1 to 5 ms; so much is added to each new connection",
)
MOST = Threshold(
    "slow look-ups of those made in the last three minutes, at least",
    0.5,
    "ratio",
    "one that is quick when it is repeated was not in the cache",
)
LOST = Threshold(
    "or instead: questions that nobody answered in time, within ten minutes, at least",
    2,
    "",
    "each costs its client the resolver's whole time-out, 5 s by default; one datagram may get lost",
)
SEVERE = Threshold(
    "time of a look-up from which it is critical", 1.0, "seconds", "longer than most clients wait for a connection"
)
HELD = Threshold(
    "time of a slow look-up in which the agent itself did not run, at most, for it to count",
    0.5,
    "ratio",
    "then the wait may be the agent's own",
)
TAKEN = Threshold(
    "CPU that is taken away, at most, where the kernel stamps no answer",
    0.05,
    "ratio",
    "the time then holds what the agent slept",
)
CHEAP = Threshold(
    "questions of one look-up above which the search list is worth changing", 2, "", "A and AAAA of the name as it is"
)
SURE = not_measured(0.9, "timed by the kernel on real name servers that delay and drop (docs/evidence/os-stalls.md)")


def _judge(history: History) -> Judgement:
    readings = history.window(NamesReading, SPAN)
    if not readings or readings[-1].lookup_seconds is None:
        reason = readings[-1].unseen.get("lookup_seconds", _UNREAD) if readings else _UNREAD
        return Unknown(*history.why_missing(NamesReading, SPAN).otherwise(reason, "wait", reason.code))
    sound = [r for r in readings if not _was_held(history, r)]
    if readings[-1] not in sound:
        return Unknown(
            "a look-up was slow while the agent itself was held: whose time that was, cannot be distinguished",
            "wait",
            Code.NOT_YET,
        )
    found = [_of_name(history, sound, name) for name in readings[-1].lookup_seconds]
    return targets.worst_of(found) or Unknown(_UNREAD, "wait", Code.NOT_YET)


def _was_held(history: History, reading: NamesReading) -> bool:
    """Whether the slow look-ups of a slot may be the agent's own sleep."""
    whole = sum(end - begin for begin, end in reading.slow_between)
    held = sum(held_between(history, begin, end) for begin, end in reading.slow_between)
    blind = not reading.stamped and bool(whole) and taken_from_group(history, SPAN, "") > TAKEN.value
    return blind or held > HELD.value * whole


def _of_name(history: History, readings: Sequence[NamesReading], name: str) -> Judgement:
    asked = [r for r in readings if name in (r.lookups or {})]
    if not asked:
        return Unknown(_UNREAD, "wait", Code.NOT_YET)
    latest = asked[-LATEST:]
    made, slow, lost_lately = (_sum(latest, field, name) for field in ("lookups", "slow_lookups", "unanswered"))
    lost = _sum(asked, "unanswered", name)
    questions = (asked[-1].questions or {}).get(name, 0.0)
    # Of what is slow now: the slots before it would make it look quicker.
    of_now = [r for r in latest if (r.slow_lookups or {}).get(name)] or latest
    usual = fmean((r.lookup_seconds or {}).get(name, 0.0) for r in of_now)
    cost = Evidence(
        f"a look-up of {name} sends {questions:.0f} questions (ndots:{asked[-1].ndots or 0:.0f}, {asked[-1].search_domains or 0:.0f} search domains)",
        questions,
    )  # fmt: skip
    takes = Evidence(f"looking up {name} takes {duration(usual)}", usual, "seconds")
    is_slow = slow >= 2 and slow >= MOST.value * made
    is_lossy = lost >= LOST.value and bool(lost_lately)
    if not is_slow and not is_lossy:
        if _sum(latest, "not_found", name) >= made:
            return Unknown(
                f"{name} has no address, so its look-up cannot be compared",
                "check the name in the settings",
                Code.ABSENT,
            )
        return Absent(f"{takes.text}; {cost.text}", (takes, cost))
    evidence = [takes] if is_slow else []
    if lost:
        text = f"{lost:.0f} questions about {name} were not answered in time within ten minutes"
        evidence.append(Evidence(text, lost))
    severity: Severity = "critical" if is_slow and usual >= SEVERE.value else "warning"
    return Present(
        severity, SURE, place.scope(history), (*evidence, cost),
        Advice(ADVICE, _changes(history, name, questions, lossy=bool(lost)), "", "more CPU, a faster database: nobody has been asked for anything yet"),
    )  # fmt: skip


def _sum(readings: Sequence[NamesReading], field: str, name: str) -> float:
    return float(sum((getattr(r, field) or {}).get(name, 0.0) for r in readings))


def _changes(history: History, name: str, questions: float, *, lossy: bool) -> tuple[str, ...]:
    here = place.where(history)
    in_pod = here is not None and here.environment == "kubernetes"
    found = []
    if questions > CHEAP.value:
        found.append(
            f"{name.removesuffix('.')}.   # the name with a final dot, in the app's settings: it is asked for once"
        )
        found.append(NDOTS if in_pod else "options ndots:1   # in /etc/resolv.conf of the container")
    if in_pod:
        found.append("NodeLocal DNSCache on the cluster   # answers on the node, and asks upstream over TCP")
    if lossy:
        found.append(
            "options single-request-reopen   # in /etc/resolv.conf or dnsConfig: glibc asks for A and AAAA from two ports"
        )
    return (*found, "keep connections open (a pool): each new one asks for the name again")


_UNREAD = Unseen("no name has been looked up yet", Code.NOT_YET)
NDOTS = 'spec.template.spec.dnsConfig.options: [{name: ndots, value: "2"}]'
ADVICE = "Make look-ups cheaper or rarer, or mend the name servers."

RULE = Rule(
    id="name_lookup_slow",
    title="Looking up a host name takes long",
    meaning=(
        "Before the app can connect, a name server must answer. It is slow, its answers get lost (each lost one costs 5 s "
        "with the resolver's defaults), or each name is asked for many times because of the search list."
    ),
    disproof="dig +tries=1 NAME (with a final dot) answers in a few milliseconds from the app's container, twenty times in a row",
    needs=(NamesReading,),
    thresholds=(SLOW, MOST, LOST, SEVERE, HELD, TAKEN, CHEAP),
    confidences=(SURE,),
    span_seconds=SPAN,
    judge=_judge,
    advice=ADVICE,
    suspect="network",
)
