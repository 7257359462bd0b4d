"""The long-running agent: measuring, pages, log lines and signals, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from agent import __version__
from agent.app import Agent
from agent.config import Config, parse_address
from agent.diagnosis import Change, as_event
from agent.exits import UNAVAILABLE
from agent.report import Report, to_json
from exporters import console, server
from exporters.json_log import LineWriter, line, severity_of
from exporters.pages import Front, Pages
from exporters.prometheus import MetricsPage
from probes import READINGS

#: By now the two spins of the first seconds have been told: a slot out of turn makes the first report that
#: can conclude anything, and a person at a terminal gets it a moment later.
FIRST_SLOT_SECONDS, FIRST_REPORT_SECONDS = 8.5, 9.5


class Teller:
    """Says on standard output what changes: JSON lines, or text for a terminal."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json
        self.writer = LineWriter()
        self._colour = not as_json and "NO_COLOR" not in os.environ

    def changes(self, report: Report, changes: Sequence[Change]) -> None:
        """Tell every verdict that changed to or from present; unknown to absent is only the warm-up."""
        for change in changes:
            if "present" not in (change.before, change.now):
                continue
            event = as_event(change)
            if self._json:
                body = {**event, "verdict": report.verdict}
                self.writer.write(line("verdict_changed", severity_of(event["severity"]), body))
            else:
                self.writer.write(console.change_line(event, colour=self._colour))

    def whole(self, event: str, report: Report) -> None:
        """Tell the whole report."""
        if self._json:
            self.writer.write(line(event, "INFO", {"report": to_json(report)}))
        else:
            self.writer.write(console.render(to_json(report), colour=self._colour))


async def serve_until_stopped(config: Config, *, as_json: bool) -> int:
    """Run until SIGTERM or SIGINT.  Returns the exit code."""
    address = parse_address(config.http.listen)
    try:
        sock = server.bind(*address)
    except OSError as error:
        print(
            f"stallscope: http.listen = {config.http.listen}: {error.strerror}; choose another with --listen",
            file=sys.stderr,
        )
        return UNAVAILABLE
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    teller = Teller(as_json) if config.log.format != "none" else None
    tell = teller.changes if teller else lambda _report, _changes: None
    agent = Agent(config, on_report=tell)
    page = MetricsPage(agent.state, READINGS)
    agent.on_reading = page.readings.observe
    if teller:
        agent.lines_dropped = lambda: teller.writer.dropped
    pages = Pages(agent.state, page, config.http.fail_status)
    app: Any = Front(pages, _api(pages, agent))
    if config.requests.own:
        app = _counting(app, agent)
    serving_ready = server.prepare(app, config.http.most_connections)
    try:
        await agent.start()
    except OSError as error:
        print(f"stallscope: the measuring child cannot be started: {error.strerror}", file=sys.stderr)
        sock.close()
        return UNAVAILABLE
    gc.enable()
    measuring = asyncio.create_task(agent.run())
    serving = asyncio.create_task(serving_ready.serve(sock, stop))
    _greet(sock.getsockname()[:2])
    asyncio.get_running_loop().call_later(FIRST_SLOT_SECONDS, agent.schedule.nudge)
    if teller and not as_json:
        asyncio.get_running_loop().call_later(FIRST_REPORT_SECONDS, _first_report, teller, agent)
    try:
        done, _ = await asyncio.wait({measuring, serving}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        stop.set()
        measuring.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await measuring
        await serving
        if teller and agent.state.snapshot is not None:
            teller.whole("final_report", agent.publish())
        await agent.aclose()
    return 0


def _greet(address: Sequence[Any]) -> None:
    host, port = address[0], address[1]
    base = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    text = f"stallscope {__version__}: report {base}/report.txt  JSON {base}/health  metrics {base}/metrics"
    with contextlib.suppress(OSError):  # nobody may be reading it
        print(text, file=sys.stderr, flush=True)


def _first_report(teller: Teller, agent: Agent) -> None:
    if agent.state.snapshot is not None:
        teller.whole("first_report", agent.state.snapshot.report)


def _api(pages: Pages, agent: Agent) -> Callable[[], Any]:
    """Loads the FastAPI application when it is first asked for."""

    @cache
    def load() -> Any:
        from exporters.http import create_app  # noqa: PLC0415 - most of the memory and of the start-up time

        return create_app(pages, agent.in_flight.set, __version__, agent.config.http.fail_status)

    return load


def _counting(app: Any, agent: Agent) -> Any:
    """Count the requests that the agent serves as requests in flight (``requests.own``)."""

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        agent.in_flight.add("own", 1)
        try:
            await app(scope, receive, send)
        finally:
            agent.in_flight.add("own", -1)

    return counted
