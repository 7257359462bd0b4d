"""The long-running agent: measuring, pages, log lines and signals, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from agent import __version__
from agent.app import Agent
from agent.commands.change_notifier import ChangeNotifier, Form
from agent.commands.doors import CannotServe, login_of, open_doors
from agent.commands.exits import UNAVAILABLE, complain
from agent.meter import Meter
from agent.settings.load import Config, anybody_told
from exporters import server
from exporters.board import in_foreground
from exporters.cloud_logging import CloudLog
from exporters.failures import Failures
from exporters.guard import Guard, Hosts, own_names
from exporters.json_log import LineHandler, LineWriter, strings
from exporters.listen import urls
from exporters.metrics_page import MetricsPage
from exporters.pages import Front, Pages
from probes import READINGS
from probes.gcp.cloud_logging import open_api

if TYPE_CHECKING:
    from exporters.login import Access
    from exporters.push.outputs import Outputs

#: By now the two spins of the first seconds have been told: a slot out of turn makes the first report that
#: can conclude anything, and a person at a terminal gets it a moment later.
FIRST_SLOT_SECONDS, FIRST_REPORT_SECONDS = 8.5, 9.5
#: What the start leaves behind is cleared away when it is over: at 5 % of a core beside a busy app it would keep /readyz waiting for .4 s.
TIDY_SECONDS = 3.0
#: On a terminal: as often as most probes measure.
RENEW_SECONDS = 10.0


def _notifier(config: Config, as_json: bool) -> ChangeNotifier:
    form: Form = "none" if config.log.format == "none" else "json" if as_json else "text"
    errors = _structure_records() if as_json and not sys.stderr.isatty() else None
    return ChangeNotifier(form, _cloud_log(config), errors)


def _structure_records() -> LineWriter:
    """From now on Python's own records and warnings are lines on standard error."""
    writer = LineWriter(2)
    logging.getLogger().addHandler(LineHandler(writer))
    logging.captureWarnings(True)
    return writer


def _cloud_log(config: Config) -> CloudLog | None:
    log = config.cloud_logging.findings_log
    if not log:
        return None
    environ = os.environ.get
    labels = {"service": environ("K_SERVICE"), "revision": environ("K_REVISION"), "host": socket.gethostname()}
    return CloudLog(open_api(config.cloud_logging), log, strings(labels))


async def serve_until_stopped(config: Config, *, as_json: bool, until_stdin_ends: bool = False) -> int:
    """Run until SIGTERM or SIGINT, or until nobody holds the other end of standard input.  Returns the exit code."""
    try:
        socks, access = open_doors(config)
    except CannotServe as refused:
        complain(*refused.faults)
        return refused.code
    notifier = _notifier(config, as_json)
    agent = Agent(config)
    page = MetricsPage(agent.state, READINGS)
    agent.on_report, agent.on_slot = notifier.changes, page.renew
    outputs = await _outputs(config, agent, page)
    agent.on_reading, agent.schedule.on_stale = page.readings.observe, page.readings.forget
    agent.lines_dropped, agent.cloud_entries = notifier.dropped, notifier.cloud_entries
    ready = _server(config, agent, Pages(agent.state, page, config.http.fail_status), notifier, access)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):  # until now they ended the process at once: stallscope.py
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if until_stdin_ends:
        _stop_at_end(0, stop)
    try:
        await agent.start()
    except OSError as error:
        complain(f"the measuring child cannot be started: {error.strerror}")
        for sock in socks:
            sock.close()
        return UNAVAILABLE
    measuring = asyncio.create_task(agent.run())
    serving = asyncio.create_task(ready.serve(socks, stop))
    notifier.greet(urls(socks, "https" if access and access.tls() else "http"))
    asyncio.get_running_loop().call_later(TIDY_SECONDS, _tidy)
    asyncio.get_running_loop().call_later(FIRST_SLOT_SECONDS, agent.schedule.nudge)
    if notifier.form == "text":
        _show_on_terminal(notifier, agent)
    try:
        done, _ = await asyncio.wait({measuring, serving}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        stop.set()
        measuring.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await measuring
        ending = _last_word(notifier, agent, outputs)
        await serving
        await agent.aclose()
        await notifier.aclose()
        await ending
    return 0


def _tidy() -> None:
    gc.collect()  # classes that were made twice, the parser: 0.6 MB, for 8 ms
    gc.freeze()  # 51,000 objects that stay: each full collection would look at all of them, for 20 ms
    gc.enable()


def _server(
    config: Config, agent: Agent, pages: Pages, notifier: ChangeNotifier, access: Access | None
) -> server.Server:
    """What answers on the sockets, and counts what that costs as the agent's own."""
    project = config.cloud_logging.project or os.environ.get("GOOGLE_CLOUD_PROJECT", "")
    guard = Guard(Hosts(config.http.allowed_hosts, own_names()))
    login, meter = login_of(config, access), Meter()
    agent.cost.others = lambda: meter.seconds + (login.cpu_seconds if login else 0.0)
    app: Any = Failures(Front(pages, _api(pages, agent), guard, login), notifier.failure, project)
    if config.requests.own:
        app = _counting(app, agent)
    return server.Server(app, config.http.most_connections, access.tls if access else lambda: None, meter)


def _last_word(notifier: ChangeNotifier, agent: Agent, outputs: Outputs | None) -> Awaitable[None]:
    """Tell the last report, before anything else ends: what is sent then has the whole time that is left."""
    if agent.state.snapshot is not None:
        report = agent.last_word()
        if outputs is not None:
            outputs.end(report)
        notifier.final(report)
    return asyncio.ensure_future(outputs.aclose() if outputs is not None else asyncio.sleep(0))


async def _outputs(config: Config, agent: Agent, page: MetricsPage) -> Outputs | None:
    """Those who are told without asking, where there are any; nothing of it is loaded else."""
    if not anybody_told(config):
        return None
    from exporters.push.outputs import open_outputs  # noqa: PLC0415 - only where the settings ask for it

    outputs = await open_outputs(config, page.families)
    agent.on_report, agent.pushed = outputs.after(agent.on_report), outputs.counts
    return outputs


def _show_on_terminal(notifier: ChangeNotifier, agent: Agent) -> None:
    """From the first report on, again and again; Enter prints everything."""
    loop = asyncio.get_running_loop()

    def renew() -> None:
        if agent.state.snapshot is not None:
            notifier.renew(agent.state.snapshot.report)
        loop.call_later(RENEW_SECONDS, renew)

    def entered() -> None:
        # A background process that reads its terminal is stopped (SIGTTIN), and one that does not is woken for each key.
        if not in_foreground(0) or not os.read(0, 4096):
            loop.remove_reader(0)
        elif agent.state.snapshot is not None:
            notifier.everything(agent.state.snapshot.report)

    loop.call_later(FIRST_REPORT_SECONDS, renew)
    if sys.stdin.isatty():
        loop.add_reader(0, entered)


def _stop_at_end(fd: int, stop: asyncio.Event) -> None:
    """A supervisor that is killed cannot tell us to stop: the kernel closes its end of this pipe."""
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(fd)
        stop.set()

    loop.add_reader(fd, ended)


def _api(pages: Pages, agent: Agent) -> Callable[[], Awaitable[Any]]:
    """Loads the FastAPI application when it is first asked for, in a thread: at 5 % of a core it takes six seconds."""

    def load() -> Any:
        from exporters.http import create_app  # noqa: PLC0415 - most of the memory and of the start-up time

        return create_app(pages, agent.in_flight.set, __version__, agent.config.http.fail_status)

    loading: asyncio.Future[Any] | None = None

    async def api() -> Any:
        nonlocal loading
        loading = loading or asyncio.ensure_future(asyncio.to_thread(load))
        return await asyncio.shield(loading)  # the first to ask may hang up; the others wait for it all the same

    return api


def _counting(app: Any, agent: Agent) -> Any:
    """Count the requests that the agent serves as requests in flight (``requests.own``)."""

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        agent.in_flight.add("own", 1)
        try:
            await app(scope, receive, send)
        finally:
            agent.in_flight.add("own", -1)

    return counted
