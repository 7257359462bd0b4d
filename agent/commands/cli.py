"""The command line: what each command does.  What it takes stands in :mod:`agent.commands.parser`.

Exit codes: 0 done (doctor: healthy; demo: found), 1 findings (demo: others than expected), 2 cannot tell, 64 wrong
usage, 69 something needed is not available (port taken, agent not reachable, no CPU quota), 78 unusable settings.
No fault ends as a traceback.  Over 300 lines: each command is a few lines here, so that all exit codes are read in one place.
"""

from __future__ import annotations

import argparse
import errno
import gc
import json
import os
import signal
import sys
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from agent.commands.exits import (
    BAD_CONFIG,
    CANNOT_TELL,
    FINDINGS,
    HEALTHY,
    UNAVAILABLE,
    USAGE,
    complain,
    leave,
    silence,
)
from agent.commands.hooks import hook_path
from agent.commands.hooks import overview as hooks_overview
from agent.commands.parser import Handler, build_parser
from agent.commands.start import find_authorities, leave_tls_out, obstacle, open_standard_streams

#: A disk that is full, a quota, a limit of size, a device that fails, a descriptor that cannot be written to.
_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
#: Holds the DSN that was given as a flag; no setting begins like this.
_DSN_VARIABLE = "DOCTOR_DSN"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.  Returns the exit code."""
    gc.disable()  # a tenth of the start-up time, which counts double at a small quota; `run` switches it on again
    open_standard_streams()
    find_authorities(os.environ)
    try:
        return _dispatch(argv)
    except Refused as refused:
        complain(*refused.faults)
        return refused.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        silence(1)  # the reader is gone (a pager that was closed): no output, and no traceback
        return HEALTHY
    except OSError as error:
        silence(1)
        what = "write the output" if error.errno in _OF_OUTPUT else "go on"
        complain(f"cannot {what}: {error.strerror or error}")
        return UNAVAILABLE
    finally:
        complain()  # what could not be told until now need not be tried again


def _dispatch(argv: Sequence[str] | None) -> int:
    """Run the command and flush what it printed, here where a failure to do so is caught."""
    try:
        arguments = build_parser(_HANDLERS).parse_args(argv)
        if arguments.command is not _run and callable(signal.getsignal(signal.SIGINT)):
            signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on it is caught above
        code: int = arguments.command(arguments)
    finally:
        sys.stdout.flush()
    return code


class Refused(Exception):
    """The command cannot be carried out, for these reasons."""

    def __init__(self, code: int, *faults: str) -> None:
        super().__init__(*faults)
        self.code, self.faults = code, faults


def _load(arguments: argparse.Namespace, *, to_measure: bool) -> Any:
    """The settings.  Raises Refused where they are unusable, or, ``to_measure``, nothing can be measured here."""
    from agent.rules import BY_ID  # noqa: PLC0415 - same
    from agent.settings.load import ConfigError, load  # noqa: PLC0415 - not needed by every command

    flags = [*arguments.set, *(flag for flag in _flags(arguments) if flag[1])]
    try:
        config = load(arguments.config, os.environ, flags, known_rules=tuple(BY_ID))
    except ConfigError as error:
        raise Refused(BAD_CONFIG, *error.faults) from None
    if to_measure and (why := obstacle()):
        raise Refused(UNAVAILABLE, why)
    return config


def _flags(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Settings that have a flag of their own; "" where it was not given."""
    given = vars(arguments).get
    yield "http.listen", ",".join(given("listen") or ())
    yield "http.web_config", given("web_config") or ""
    yield "app.pid", given("pid") or ""
    yield "connections.ports", ",".join(given("port") or ())
    yield "requests.metrics_url", given("url") or ""
    yield "pool.metrics_url", given("url") or ""
    if dsn := given("dsn"):
        from probes.store.place import PLACES  # noqa: PLC0415 - only here

        if not dsn.startswith(PLACES):
            os.environ[_DSN_VARIABLE], dsn = dsn, f"env:{_DSN_VARIABLE}"
        yield "postgres.targets", f"database={dsn}"


def _run(arguments: argparse.Namespace) -> int:
    leave_tls_out()
    config = _load(arguments, to_measure=True)
    import asyncio  # noqa: PLC0415 - not needed by every command

    from agent.commands.run import serve_until_stopped  # noqa: PLC0415 - the whole agent

    as_json = arguments.json or not sys.stdout.isatty()
    if not arguments.embedded_postgres:
        serving = serve_until_stopped(config, as_json=as_json, until_stdin_ends=arguments.until_stdin_ends)
        return asyncio.run(_and_leave(serving))
    from agent.commands.embedded_postgres import TARGET, EmbeddedPostgres, NotAvailable  # noqa: PLC0415 - only here
    from agent.settings.presets import watching  # noqa: PLC0415 - only here

    try:
        with EmbeddedPostgres() as database:
            os.environ[TARGET.removeprefix("env:")] = database.dsn
            return asyncio.run(serve_until_stopped(watching(config, "embedded", TARGET), as_json=as_json))
    except NotAvailable as reason:
        raise Refused(UNAVAILABLE, f"{reason}") from None


async def _and_leave(serving: Coroutine[Any, Any, int]) -> int:
    leave(await serving)


def _doctor(arguments: argparse.Namespace) -> int:
    leave_tls_out()
    config = _load(arguments, to_measure=True)
    import asyncio  # noqa: PLC0415 - not needed by every command

    from agent.commands.doctor import examine, too_short_for  # noqa: PLC0415 - the whole agent
    from agent.commands.page import write_page  # noqa: PLC0415 - same

    try:
        report, timeline = asyncio.run(examine(config, arguments.seconds, progress=sys.stderr))
    except OSError as error:
        raise Refused(UNAVAILABLE, f"cannot measure: {error.strerror or error}") from None
    if arguments.html:
        write_page(arguments.html, report, timeline)
    code = _show(report, as_json=arguments.json, verbose=arguments.verbose)
    complain(*too_short_for(report, arguments.seconds))
    return code


def _demo(arguments: argparse.Namespace) -> int:
    from agent.commands.demo.stage import show  # noqa: PLC0415 - psycopg and more

    return show(arguments.stall)


def _show(report: dict[str, Any], *, as_json: bool, verbose: bool) -> int:
    from exporters import console  # noqa: PLC0415 - only for output

    if as_json:
        print(json.dumps(report, indent=2))
    else:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        width = _width()
        whole = console.render(report, colour=colour, width=width)  # a report of which a part is missing is none
        print(whole if verbose else console.render(report, colour=colour, verbose=False, width=width), end="")
        if not verbose:
            print(f"{'more':<9} -v: findings, numbers, what is ruled out and what cannot be seen")
    if not report["findings"] and not report["conclusive"]:
        return CANNOT_TELL
    return FINDINGS if report["findings"] or report["status"] != "pass" else HEALTHY


def _width() -> int:
    """Columns of a report here."""
    from exporters import terminal  # noqa: PLC0415 - only for output
    from exporters.console import LEAST_WIDTH, WIDTH  # noqa: PLC0415

    return max(LEAST_WIDTH, min(WIDTH, terminal.size(WIDTH).columns))


def _report(arguments: argparse.Namespace) -> int:
    from agent.commands.page import write_page  # noqa: PLC0415 - only here
    from agent.commands.report import Unreachable, get_report, get_timeline, local_agent, pass_for  # noqa: PLC0415 - urllib

    url = arguments.url or local_agent(os.environ)
    try:
        shown = pass_for(arguments.login_file, arguments.ca_file)
        report = get_report(url, shown)
        timeline = get_timeline(url, shown) if arguments.html else {}
    except Unreachable as error:
        raise Refused(UNAVAILABLE, f"{error}") from None
    try:
        if arguments.html:
            write_page(arguments.html, report, timeline)
        return _show(report, as_json=arguments.json, verbose=arguments.verbose)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        raise Refused(UNAVAILABLE, f"{url}: the answer is not a whole report of stallscope") from None


def _fleet(arguments: argparse.Namespace) -> int:
    from agent.commands.fleet import command  # noqa: PLC0415 - urllib and all rules, only here
    from agent.commands.fleet.engine import NoAnswer  # noqa: PLC0415 - same

    try:
        asked = command.check(arguments)
        found = command.look(asked, arguments.since)
    except command.Unusable as unusable:
        raise Refused(USAGE, *map(str, unusable.args)) from None
    except NoAnswer as error:
        raise Refused(UNAVAILABLE, f"{error}") from None
    print(command.show(asked, found, as_json=arguments.json, width=_width()), end="")
    if found.findings:
        return FINDINGS
    return HEALTHY if found.conclusive else CANNOT_TELL


def _mcp(arguments: argparse.Namespace) -> int:
    config = _load(arguments, to_measure=False)
    from agent.commands.mcp import Tools, serve  # noqa: PLC0415 - only here
    from agent.commands.report import Unreachable, local_agent, pass_for  # noqa: PLC0415 - same

    gc.enable()
    try:
        shown = pass_for(arguments.login_file, arguments.ca_file)
        serve(Tools(config, arguments.url or local_agent(os.environ), shown))
    except Unreachable as error:
        raise Refused(UNAVAILABLE, f"{error}") from None
    except ImportError:
        raise Refused(UNAVAILABLE, "mcp needs a package more: pip install 'stallscope[mcp]'") from None
    return HEALTHY


def _check_config(arguments: argparse.Namespace) -> int:
    config = _load(arguments, to_measure=False)
    from agent.commands.doors import web_config_remarks  # noqa: PLC0415 - only here
    from agent.settings.load import history_bytes, predicted_cpu_ratio  # noqa: PLC0415 - after the check
    from agent.settings.outside import remarks  # noqa: PLC0415 - same

    complain(*remarks(config, os.environ), *web_config_remarks(config))
    if arguments.json:
        print(json.dumps(config.model_dump(mode="json"), indent=2))
        return HEALTHY
    for section, values in config.model_dump(mode="json").items():
        print(f"[{section}]")
        for key, value in values.items():
            shown = "# unset" if value is None else _toml(value)
            print(f"{'# ' if value is None else ''}{key} = {shown}")
        print()
    print(
        f"# at most about {predicted_cpu_ratio(config) * 3600:.1f} CPU-seconds per hour, more beside many connections and hooks "
        f"(stallscope_agent_cpu_most_ratio tells how much there) or beside work that crowds this machine's CPUs, held at {config.budget.cpu_ratio * 3600:.0f} over five minutes "
        "(budget.cpu_ratio: it looks less often instead); "
        f"history of at most {history_bytes(config) / 2**20:.1f} MiB"
    )
    return HEALTHY


def _toml(value: Any) -> str:
    """A value as TOML has it: like JSON, but for tables."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def _explain(arguments: argparse.Namespace) -> int:
    from agent.commands.explain import as_json, as_text, overview  # noqa: PLC0415 - only here
    from agent.rules import BY_ID, RULES  # noqa: PLC0415 - same

    if arguments.rule is None:
        print(json.dumps([as_json(rule) for rule in RULES], indent=2) if arguments.json else overview(RULES), end="\n")
        return HEALTHY
    if arguments.rule not in BY_ID:
        raise Refused(USAGE, f"no such rule {arguments.rule!r}; known: {', '.join(BY_ID)}")
    rule = BY_ID[arguments.rule]
    print(json.dumps(as_json(rule), indent=2) if arguments.json else as_text(rule))
    return HEALTHY


def _hooks(arguments: argparse.Namespace) -> int:
    try:
        print(hook_path(arguments.path) if arguments.path else hooks_overview())
    except FileNotFoundError as reason:
        raise Refused(UNAVAILABLE, f"{reason}") from None
    return HEALTHY


def _bench(arguments: argparse.Namespace) -> int:
    from agent.commands.bench import command  # noqa: PLC0415 - psutil and all of it, only here

    if arguments.bench == "compare":
        return command.compared(arguments)
    return command.postgres(arguments, lambda: _load(arguments, to_measure=True))


def _completion(arguments: argparse.Namespace) -> int:
    import shtab  # noqa: PLC0415 - only here

    print(shtab.complete(build_parser(_HANDLERS), shell=arguments.shell))
    return HEALTHY


def _help(_: argparse.Namespace) -> int:
    build_parser(_HANDLERS).print_help()
    return HEALTHY


_HANDLERS: dict[str, Handler] = {
    "": _help, "run": _run, "exec": _help, "doctor": _doctor, "demo": _demo, "report": _report, "fleet": _fleet, "mcp": _mcp,
    "check-config": _check_config, "explain": _explain, "hooks": _hooks, "completion": _completion, "bench": _bench,
}  # fmt: skip
