"""``stallscope demo STALL``: a real stall, made here and found by the real agent, within a minute and a half.

Four parts, each a process of its own: the embedded PostgreSQL, a small app that uses it, the agent that watches
both, and this one, which makes the stall, tells what happens, and lifts it again.  Everything lives on the loopback
and ends with this process, whatever ends it: each child ends when its standard input closes.  Only a cgroup
outlives a SIGKILL; it is empty by then, and the next demo removes it.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from statistics import median
from types import FrameType
from typing import Any, NoReturn

import psycopg
from psycopg.conninfo import conninfo_to_dict

from agent.commands.demo import app
from agent.commands.demo.app import DSN_VARIABLE
from agent.commands.demo.child import Child
from agent.commands.demo.stalls import STALLS, Fault, Stall
from agent.commands.embedded_postgres import HOST, EmbeddedPostgres, NotAvailable, free_port
from agent.commands.exits import CANNOT_TELL, FINDINGS, HEALTHY, UNAVAILABLE
from agent.commands.report import Unreachable, get_report
from agent.commands.run import serve_until_stopped
from agent.settings.load import Config
from agent.settings.presets import for_demo, watching
from exporters import console
from probes.kernel_files import why
from probes.record import dataclass

#: A line about the app comes this often.
APP_EVERY_SECONDS = 5.0
#: The agent may end in order for this long; the others have nothing to put in order.
GRACE_SECONDS = 5.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGENT = "import sys; from agent.commands.demo.stage import run_agent; sys.exit(run_agent(*sys.argv[1:]))"


@dataclass(frozen=True, slots=True)
class Plan:
    """Seconds that the parts may take, at most: until a first verdict, until the stall is found, until it is over.

    The stall lasts ``least`` seconds even when it is found at once, so that the app's plight can be seen.  The
    agent remembers ``history_seconds`` seconds; rules look back a minute and more otherwise.
    """

    before: float = 15.0
    least: float = 10.0
    stall: float = 40.0
    after: float = 30.0
    history_seconds: float = 10.0


def exit_code(expected: Sequence[str], appeared: set[str]) -> int:
    """0 when all that was expected appeared, 1 when only something else did, 2 when nothing did."""
    if appeared.issuperset(expected):
        return HEALTHY
    return FINDINGS if appeared else CANNOT_TELL


def conclusion(expected: Sequence[str], appeared: set[str], took: float) -> str:
    """What became of the expectation; ``took`` is seconds since the stall began."""
    missing = [rule for rule in expected if rule not in appeared]
    if not missing:
        return f"found within {took:.0f} s: {', '.join(expected)}; what it means: stallscope explain {expected[0]}"
    others = ", ".join(sorted(appeared)) or "nothing"
    return f"NOT found within {took:.0f} s: {', '.join(missing)}; found: {others}"


def app_line(seconds: Sequence[float], over: float) -> str:
    """How the app fares: its transactions that ended within ``over`` seconds, and what each of them took."""
    if not seconds:
        return f"the app: not one transaction in {over:.0f} s"
    return f"the app: {len(seconds)} transactions in {over:.0f} s, half of them within {1e3 * median(seconds):.1f} ms"


class Demo:
    """One run of the demo."""

    def __init__(self, stall: Stall, plan: Plan) -> None:
        self._stall, self._plan = stall, plan
        self._began = self._app_printed = time.monotonic()
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._seconds: list[float] = []
        self._present: set[str] = set()
        self._appeared: set[str] = set()
        self._takers: dict[int, tuple[Child, Callable[[bytes], None]]] = {}
        self._port = free_port()

    def run(self, stack: ExitStack) -> int:
        """Do all of it; what is started ends with ``stack``.  Returns the exit code.

        Raises NotAvailable.
        """
        stall, plan = self._stall, self._plan
        self._fault = fault = stall.fault(stack)
        self._print(f"{stall.title}: a demo. Starting a PostgreSQL, a small app that uses it, and the agent")
        server = stack.enter_context(EmbeddedPostgres())
        with _needed():
            self._start(stack, fault, fault.prepare(server.dsn))
        self._print(
            f"they run. Here the agent looks every second or two, and back {plan.history_seconds:.0f} s; "
            "in earnest every 10 s, and back a minute and more"
        )
        self._settle(plan.before)
        self._show()
        self._appeared.clear()
        with ExitStack() as stalled:
            with _needed():
                stalled.enter_context(fault.stalled())
            made = time.monotonic()
            self._print(stall.made)
            self._watch(lambda: self._appeared.issuperset(stall.expected), plan.stall)
            took = time.monotonic() - made
            self._watch(lambda: False, plan.least - took)
            appeared = set(self._appeared)
            self._show()
            with _needed():
                stalled.close()
        self._print(stall.lifted)
        over = time.monotonic() + plan.after
        self._watch(lambda: False, min(plan.least, plan.after))
        self._watch(lambda: self._present.isdisjoint(appeared), over - time.monotonic())
        self._settle(over - time.monotonic())
        self._show()
        self._print(conclusion(stall.expected, appeared, took))
        return exit_code(stall.expected, appeared)

    def _start(self, stack: ExitStack, fault: Fault, dsn: str) -> None:
        found = os.pathsep.join(
            filter(None, sys.path)
        )  # stallscope.py has put it in order: the app's folders come last
        environ = {**os.environ, DSN_VARIABLE: dsn, "PYTHONPATH": found}
        for name, words, take, grace in (
            ("app", ["-P", app.__file__], self._take_app, 0.0),
            (
                "agent",
                ["-P", "-c", _AGENT, str(self._port), str(self._plan.history_seconds)],
                self._take_agent,
                GRACE_SECONDS,
            ),
        ):
            child = stack.enter_context(closing(Child(name, [sys.executable, *words], environ, grace)))
            fault.add_process(child.process.pid)
            self._takers[child.output] = child, take
        self._app_printed = time.monotonic()

    def _take_app(self, line: bytes) -> None:
        self._seconds.append(float(line.split()[0]))

    def _take_agent(self, line: bytes) -> None:
        event = json.loads(line)
        if event["event"] != "verdict_changed":
            return
        if event["now"] == "present":
            self._present.add(event["rule"])
            self._appeared.add(event["rule"])
        else:
            self._present.discard(event["rule"])
        change = {**event, "severity": event["finding_severity"]}  # the line's own is Cloud Logging's word
        self._print(console.change_line(change, colour=self._colour).rstrip("\n"))

    def _watch(self, until: Callable[[], bool], seconds: float) -> None:
        """Take what app and agent say, until this holds or the time is over."""
        deadline = time.monotonic() + seconds
        while not until() and (left := deadline - time.monotonic()) > 0:
            heard = [fd for fd, (child, _) in self._takers.items() if child.name != "app" or self._fault.output_is_read]
            for fd in select.select(heard, [], [], min(left, 0.5))[0]:
                child, take = self._takers[fd]
                for line in child.lines():
                    take(line)
            if time.monotonic() >= self._app_printed + APP_EVERY_SECONDS:
                self._show_app()

    def _settle(self, seconds: float) -> None:
        """Wait until the agent has a verdict, or the time is over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._report()["conclusive"]:
            self._watch(lambda: False, 1.0)

    def _report(self) -> dict[str, Any]:
        """The agent's report; until it serves one, a report that says so."""
        try:
            return get_report(f"http://{HOST}:{self._port}")
        except Unreachable:
            return {"status": "warn", "verdict": "Cannot tell yet: the agent does not answer.", "conclusive": False}

    def _show(self) -> None:
        if time.monotonic() >= self._app_printed + 1:
            self._show_app()
        self._print("the agent says")
        print(console.headline(self._report(), colour=self._colour).rstrip("\n"), flush=True)

    def _show_app(self) -> None:
        now = time.monotonic()
        text = app_line(self._seconds, now - self._app_printed)
        self._print(text if self._fault.output_is_read else "the app: nobody reads what it writes")
        self._seconds.clear()
        self._app_printed = now

    def _print(self, text: str) -> None:
        print(f"t={time.monotonic() - self._began:.0f} s: {text}", flush=True)


@contextmanager
def _needed() -> Iterator[None]:
    """What fails in here ends the demo: raises NotAvailable."""
    try:
        yield
    except OSError as error:
        raise NotAvailable(f"the demo cannot go on: {why(error)}") from None
    except psycopg.Error as error:  # its text may hold the DSN
        raise NotAvailable(f"the demo cannot go on: PostgreSQL says {type(error).__name__}") from None


def show(name: str, plan: Plan | None = None) -> int:
    """Run the demo of one of ``STALLS``.  Returns the exit code; KeyboardInterrupt when it is told to end."""
    os.environ["no_proxy"] = HOST  # a proxy for the way out knows nothing of this machine's loopback
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number in [number for number in _ENDING if before[number] is not signal.SIG_IGN]:
        signal.signal(number, _leave)
    try:
        with ExitStack() as stack:
            try:
                return Demo(STALLS[name], plan or Plan()).run(stack)
            finally:
                for number in _ENDING:  # cleaning up is not to be cut short
                    signal.signal(number, signal.SIG_IGN)
    except NotAvailable as reason:
        print(f"stallscope: {reason}", file=sys.stderr)
        return UNAVAILABLE
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def run_agent(port: str, history_seconds: str) -> int:
    """What the agent's process runs: that of ``run --json`` with the demo's settings, until standard input ends."""
    place = conninfo_to_dict(os.environ[DSN_VARIABLE])
    fresh = Config.model_validate({"http": {"listen": f"{HOST}:{port}"}, "connections": {"ports": [place["port"]]}})
    config = watching(for_demo(fresh, float(history_seconds)), "demo", f"env:{DSN_VARIABLE}")

    async def serve() -> int:
        loop = asyncio.get_running_loop()

        def end() -> None:
            loop.remove_reader(0)
            os.kill(os.getpid(), signal.SIGTERM)

        loop.add_reader(0, end)
        return await serve_until_stopped(config, as_json=True)

    return asyncio.run(serve())
