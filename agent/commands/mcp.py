"""``stallscope mcp``: three read-only tools for an assistant, over standard input and output (Model Context Protocol).

The official SDK (extra ``mcp``) is loaded here alone.  An answer is text of at most 4 KB, the most relevant first: an assistant
reads all of it each time.  What did not fit is counted in its last line.

A login is shown only to the agent that the command line names: the address in a call is the assistant's, or that of
whoever talks it into something.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import io
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from agent import __version__
from agent.commands.report import NO_PASS, Pass, Unreachable, get_report
from agent.rules import BY_ID
from agent.rules.causal_graph import GRAPH
from agent.settings.load import Config
from probes.labels import printable

MOST_BYTES = 4096
#: For the line that says what was left out.
_RESERVE = 200
#: A sentence of a report; names of processes and databases in it are not ours.
_MOST_SENTENCE = 700
SHORTEST_SECONDS, LONGEST_SECONDS = 3.0, 120.0
INSTRUCTIONS = (
    "Says why a service is slow: CPU taken away, database, network, or logs piling up in memory. Ask get_verdict first; "
    "explain_rule has the thresholds of a finding, list_cannot_see what no verdict can rest on here. Nothing is changed by any of them."
)

Block = tuple[str, str]


class CannotAnswer(Exception):
    """There is no answer; the message says why and what to do."""


def fitted(blocks: Iterable[Block], most: int = MOST_BYTES) -> str:
    """The texts of (kind, text) in their order as far as they fit, and how many of which kind did not."""
    taken: list[str] = []
    room, left_out = most - _RESERVE, dict[str, int]()
    for kind, text in blocks:
        size = len(text.encode()) + 1
        if size <= room:
            taken.append(text)
            room -= size
        else:
            left_out[kind] = left_out.get(kind, 0) + 1
    if left_out:
        parts = ", ".join(f"{number} of: {kind}" for kind, number in left_out.items())
        taken.append(f"(Left out, to stay within {most // 1024} KB: {parts}.)")
    return "\n".join(taken)


def verdict_blocks(report: Mapping[str, Any]) -> Iterator[Block]:
    """A report, the most relevant first."""
    yield "verdict", f"{_said(report['verdict'])} (status {report['status']}, {report['generated']})"
    if not report["conclusive"]:
        yield "verdict", "This does not answer the question yet: see what is unknown."
    for finding in report["findings"]:
        yield from _in_short(finding)
    suspects = [
        f"{each['name']}: {each['state']}" + (f" ({each['text']})" if each["text"] else "")
        for each in report.get("suspects", ())
    ]
    if suspects:
        yield "suspects", _said(f"Suspects: {'; '.join(suspects)}")
    for finding in report["findings"]:
        yield from _details(finding)
    for each in report["unknown"]:
        yield "what is unknown", _said(f"Unknown: {each['rule']}: {each['because']}" + _then(each["remedy"]))
    for each in report["ruled_out"]:
        yield "what is ruled out", _said(f"Ruled out: {each['rule']}: {each['because']}")


def _in_short(finding: Mapping[str, Any]) -> Iterator[Block]:
    because = f", explained by {finding['explained_by']}" if finding["explained_by"] else ""
    share = f", {finding['share']:.0%} lost to it" if finding.get("share") is not None else ""
    facts = f"{finding['severity']}{share}{because}, since {finding['since']}"
    yield "findings", _said(f"Finding {finding['rule']} ({facts}): {finding['title']}")
    for each in finding["evidence"][:1]:
        yield "findings", f"  because: {_said(each['text'])}"
    for change in finding["advice"]["changes"]:
        yield "findings", f"  change: {_said(change)}"


def _details(finding: Mapping[str, Any]) -> Iterator[Block]:
    advice, rule = finding["advice"], finding["rule"]
    rows = [("do", advice["summary"]), ("costs", advice["cost"]), ("will not help", advice["will_not_help"])]
    rows += [("because", each["text"]) for each in finding["evidence"][1:]]
    for word, text in [*rows, ("proved wrong if", finding["disproof"])]:
        if text:
            yield "details of findings", _said(f"{rule}, {word}: {text}")


def cannot_see_blocks(report: Mapping[str, Any]) -> Iterator[Block]:
    """What is out of sight, first what something can be done about."""
    hidden = sorted(report["cannot_see"], key=lambda each: not each["remedy"])
    yield (
        "all",
        f"{len(hidden)} things cannot be seen from there, whatever the verdict says:"
        if hidden
        else "Nothing is out of sight.",
    )
    for each in hidden:
        kind = "what could be made visible" if each["remedy"] else "what cannot be made visible"
        yield kind, _said(f"- {each['what']}: {each['because']}" + _then(each["remedy"]))
    for each in report["unknown"]:
        if each["remedy"]:
            yield "rules that are unknown", _said(f"- rule {each['rule']}: {each['because']}" + _then(each["remedy"]))


def rule_blocks(name: str) -> Iterator[Block]:
    """What a rule is.  Raises CannotAnswer."""
    if name not in BY_ID:
        close = difflib.get_close_matches(name, BY_ID, n=3)
        near = f" Did you mean {', '.join(close)}?" if close else ""
        raise CannotAnswer(f"There is no rule {printable(name, 60)!r}.{near} Known: {', '.join(BY_ID)}")
    rule = BY_ID[name]
    yield "meaning", f"{rule.id}: {rule.title}\n\n{rule.meaning}\n"
    yield "advice", f"Do: {rule.advice}"
    yield "disproof", f"Proved wrong if: {rule.disproof}"
    if effects := GRAPH.effects(rule.id):
        yield "effects", f"When present it explains: {', '.join(effects)}"
    yield (
        "timing",
        f"Over {rule.span_seconds:g} s; appears after {rule.for_seconds:g} s, clears after {rule.clear_seconds:g} s.",
    )
    for limit in rule.thresholds:
        yield "thresholds", f"Threshold {limit.name}: {limit.value:g} {limit.unit} ({limit.source})"
    for each in rule.confidences:
        yield "confidences", f"Confidence {each}"


def _said(text: str) -> str:
    return printable(text, _MOST_SENTENCE)


def _then(remedy: str) -> str:
    return f"; to see it: {remedy}" if remedy else ""


class Tools:
    """What an assistant may call; ``url`` is the agent that it asks by itself, to which ``shown`` is shown."""

    def __init__(self, config: Config, url: str, shown: Pass = NO_PASS) -> None:
        self._config, self._url, self._shown = config, url, shown
        self._measuring = asyncio.Lock()

    async def get_verdict(self, agent: str = "", measure_seconds: float = 0) -> str:
        """Why is the service slow? The verdict, findings with the exact change to make, and what is ruled out, with numbers.

        Asks the running stallscope agent (agent: HOST:PORT or URL; empty: the configured one). Where none runs,
        measure_seconds (3 to 120, 30 is good) measures the machine that this tool runs on for that long instead.
        """
        return fitted(await self._told(agent, measure_seconds, verdict_blocks))

    async def list_cannot_see(self, agent: str = "", measure_seconds: float = 0) -> str:
        """What the agent cannot observe from where it stands, why, and what would make it visible.

        Call it before trusting that something is ruled out. Parameters as of get_verdict.
        """
        return fitted(await self._told(agent, measure_seconds, cannot_see_blocks))

    async def explain_rule(self, id: str) -> str:
        """What a finding (a rule id such as cpu_quota_throttled) means, what to do, its thresholds and their sources."""
        return fitted(rule_blocks(id))

    async def _told(
        self, agent: str, seconds: float, blocks: Callable[[Mapping[str, Any]], Iterator[Block]]
    ) -> list[Block]:
        report = await (self._measured(seconds) if seconds else self._asked(agent.strip()))
        try:
            return list(blocks(report))
        except (LookupError, TypeError, ValueError, AttributeError):
            raise CannotAnswer(
                "The answer is not a whole report of stallscope: is the agent of another version?"
            ) from None

    async def _asked(self, agent: str) -> Mapping[str, Any]:
        shown = self._shown if agent in ("", self._url) else NO_PASS
        try:
            return await asyncio.to_thread(get_report, agent or self._url, shown)
        except (Unreachable, ValueError) as error:
            raise CannotAnswer(
                f"No report: {printable(str(error), _MOST_SENTENCE)}. Start an agent there (stallscope run), give the address of one "
                "that runs as agent, or set measure_seconds to 30 to measure this machine now."
            ) from None

    async def _measured(self, seconds: float) -> Mapping[str, Any]:
        from agent.commands.doctor import examine  # noqa: PLC0415 - the whole agent, when it is asked for
        from agent.commands.start import obstacle  # noqa: PLC0415 - same

        if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
            raise CannotAnswer(
                f"measure_seconds must be {SHORTEST_SECONDS:g} to {LONGEST_SECONDS:g}, or 0 to ask an agent."
            )
        if why := obstacle():
            raise CannotAnswer(f"Nothing can be measured here: {why}.")
        if self._measuring.locked():
            raise CannotAnswer("A measurement is under way: two would disturb each other. Ask again when it has ended.")
        async with self._measuring:
            try:
                report, _ = await examine(self._config, seconds, io.StringIO())
            except OSError as error:
                raise CannotAnswer(f"Nothing can be measured here: {error.strerror or error}.") from None
        return report


def serve(tools: Tools) -> None:
    """Answer until standard input ends.  Raises ImportError without the SDK."""
    from mcp.server.mcpserver import MCPServer  # noqa: PLC0415 - only here
    from mcp.server.mcpserver.exceptions import ToolError  # noqa: PLC0415 - same
    from mcp.types import ToolAnnotations  # noqa: PLC0415 - same

    def telling(tool: Callable[..., Awaitable[str]]) -> Callable[..., Awaitable[str]]:
        @functools.wraps(tool)
        async def told(*arguments: Any, **named: Any) -> str:
            try:
                return await tool(*arguments, **named)
            except CannotAnswer as reason:
                raise ToolError(f"{reason}") from None

        return told

    server = MCPServer("stallscope", version=__version__, instructions=INSTRUCTIONS, log_level="ERROR")
    for tool, asks in ((tools.get_verdict, True), (tools.explain_rule, False), (tools.list_cannot_see, True)):
        kind = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=asks)
        server.add_tool(telling(tool), annotations=kind, structured_output=False)
    for number in (signal.SIGTERM, signal.SIGINT):  # a thread waits for standard input and could not be waited for
        signal.signal(number, signal.SIG_DFL)
    server.run("stdio")
