"""The command line: ``run``, ``doctor``, ``demo``, ``report``, ``check-config``, ``explain``, ``hooks``.

Exit codes: 0 done (doctor: healthy; demo: found), 1 findings (demo: others than expected), 2 cannot tell, 64 wrong
usage, 69 something needed is not available (port taken, agent not reachable, no CPU quota), 78 unusable settings.
No fault ends as a traceback.
"""

from __future__ import annotations

import argparse
import errno
import gc
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from agent import __version__
from agent.commands.exits import (
    BAD_CONFIG,
    CANNOT_TELL,
    FINDINGS,
    HEALTHY,
    UNAVAILABLE,
    USAGE,
    complain,
    silence,
)
from agent.commands.hooks import LOADED_BY, hook_path
from agent.commands.hooks import overview as hooks_overview
from agent.commands.start import obstacle, open_standard_streams

#: A disk that is full, a quota, a limit of size, a device that fails, a descriptor that cannot be written to.
_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
#: What ``demo`` can make; ``agent.commands.demo.stalls`` has the table, which takes a while to load.
STALLS = ("throttle", "lock", "slow-query", "network", "logs")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.  Returns the exit code."""
    gc.disable()  # a tenth of the start-up time, which counts double at a small quota; `run` switches it on again
    open_standard_streams()
    try:
        return _dispatch(argv)
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
        arguments = _parser().parse_args(argv)
        if arguments.command is not _run and callable(signal.getsignal(signal.SIGINT)):
            signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on it is caught above
        code: int = arguments.command(arguments)
    finally:
        sys.stdout.flush()
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="stallscope",
        description="Why is this service slow: database, network, CPU taken away, or logs piling up?",
    )
    parser.add_argument("--version", action="version", version=f"stallscope {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    settings = _Parser(add_help=False)
    settings.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML")
    settings.add_argument(
        "--set", action="append", default=[], type=_pair, metavar="SECTION.KEY=VALUE", help="one setting; repeatable"
    )
    output = _Parser(add_help=False)
    output.add_argument("--json", action="store_true", help="machine-readable output")
    page = _Parser(add_help=False)
    page.add_argument(
        "--html", type=Path, metavar="FILE", help="write it as a page too, one file to send to a colleague"
    )

    run = commands.add_parser("run", parents=[settings, output], help="measure and serve until told to stop")
    run.add_argument("--listen", metavar="HOST:PORT", help="address of the pages (default 127.0.0.1:9768)")
    run.add_argument(
        "--embedded-postgres", action="store_true", help="start a PostgreSQL of our own and watch it, for a first look"
    )
    run.set_defaults(command=_run)

    doctor = commands.add_parser("doctor", parents=[settings, output, page], help="measure now and print a report")
    doctor.add_argument(
        "--for", dest="seconds", type=_duration, default=30.0, metavar="DURATION", help="how long (default 30s)"
    )
    doctor.add_argument("-v", "--verbose", action="store_true", help="everything, not the opening alone")
    doctor.set_defaults(command=_doctor)

    demo = commands.add_parser("demo", help="make a stall here, on a PostgreSQL of our own, and watch it being found")
    demo.add_argument("stall", choices=STALLS, metavar="STALL", help=", ".join(STALLS))
    demo.set_defaults(command=_demo)

    report = commands.add_parser("report", parents=[output, page], help="the report of a running agent")
    report.add_argument("url", metavar="URL", help="the agent's address, like http://127.0.0.1:9768")
    report.add_argument("-v", "--verbose", action="store_true", help="everything, not the opening alone")
    report.set_defaults(command=_report)

    check = commands.add_parser("check-config", parents=[settings, output], help="check the settings and show them")
    check.set_defaults(command=_check_config)

    explain = commands.add_parser("explain", parents=[output], help="what a finding means and how it is judged")
    explain.add_argument("rule", nargs="?", metavar="RULE", help="one rule (default: list them)")
    explain.set_defaults(command=_explain)

    hooks = commands.add_parser("hooks", help="where the files are that the app's own process loads, and how")
    hooks.add_argument(
        "--path", choices=LOADED_BY, metavar="LANGUAGE", help=f"print this one's directory: {', '.join(LOADED_BY)}"
    )
    hooks.set_defaults(command=_hooks)
    return parser


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or "." not in key:
        raise argparse.ArgumentTypeError(f"{text!r} is not SECTION.KEY=VALUE")
    return key.strip(), value.strip()


def _duration(text: str) -> float:
    """Seconds of ``30``, ``30s``, ``2m``; 3 s to 1 h."""
    unit = {"s": 1.0, "m": 60.0}.get(text[-1:], 0.0)
    number = text[:-1] if unit else text
    try:
        seconds = float(number) * (unit or 1.0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration like 30s or 2m") from None
    if not 3 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} must be 3s to 60m")
    return seconds


def _load(arguments: argparse.Namespace) -> Any:
    """The settings, or ``None`` after every fault was printed."""
    from agent.rules import BY_ID  # noqa: PLC0415 - same
    from agent.settings.load import ConfigError, load  # noqa: PLC0415 - pydantic, not needed by every command

    flags = list(arguments.set)
    if getattr(arguments, "listen", None):
        flags.append(("http.listen", arguments.listen))
    try:
        return load(arguments.config, os.environ, flags, known_rules=tuple(BY_ID))
    except ConfigError as error:
        complain(*error.faults)
        return None


def _run(arguments: argparse.Namespace) -> int:
    config = _load(arguments)
    if config is None:
        return BAD_CONFIG
    if why := obstacle():
        complain(why)
        return UNAVAILABLE
    import asyncio  # noqa: PLC0415 - not needed by every command

    from agent.commands.run import serve_until_stopped  # noqa: PLC0415 - the whole agent

    as_json = arguments.json or not sys.stdout.isatty()
    if not arguments.embedded_postgres:
        return asyncio.run(serve_until_stopped(config, as_json=as_json))
    from agent.commands.embedded_postgres import TARGET, EmbeddedPostgres, NotAvailable  # noqa: PLC0415 - only here
    from agent.settings.presets import watching  # noqa: PLC0415 - only here

    try:
        with EmbeddedPostgres() as database:
            os.environ[TARGET.removeprefix("env:")] = database.dsn
            return asyncio.run(serve_until_stopped(watching(config, "embedded", TARGET), as_json=as_json))
    except NotAvailable as reason:
        complain(f"{reason}")
        return UNAVAILABLE


def _doctor(arguments: argparse.Namespace) -> int:
    config = _load(arguments)
    if config is None:
        return BAD_CONFIG
    if why := obstacle():
        complain(why)
        return UNAVAILABLE
    import asyncio  # noqa: PLC0415 - not needed by every command

    from agent.commands.doctor import examine  # noqa: PLC0415 - the whole agent
    from agent.commands.page import write_page  # noqa: PLC0415 - same

    try:
        report, timeline = asyncio.run(examine(config, arguments.seconds, progress=sys.stderr))
    except OSError as error:
        complain(f"cannot measure: {error.strerror or error}")
        return UNAVAILABLE
    if arguments.html:
        write_page(arguments.html, report, timeline)
    return _show(report, as_json=arguments.json, verbose=arguments.verbose)


def _demo(arguments: argparse.Namespace) -> int:
    from agent.commands.demo.stage import show  # noqa: PLC0415 - psycopg and more

    return show(arguments.stall)


def _show(report: dict[str, Any], *, as_json: bool, verbose: bool) -> int:
    from exporters import console  # noqa: PLC0415 - only for output

    if as_json:
        print(json.dumps(report, indent=2))
    else:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        width = min(console.WIDTH, shutil.get_terminal_size((console.WIDTH, 24)).columns)
        whole = console.render(report, colour=colour, width=width)  # a report of which a part is missing is none
        print(whole if verbose else console.render(report, colour=colour, verbose=False, width=width), end="")
        if not verbose:
            print(f"{'more':<9} -v: findings, numbers, what is ruled out and what cannot be seen")
    if report["findings"]:
        return FINDINGS
    return HEALTHY if report["conclusive"] else CANNOT_TELL


def _report(arguments: argparse.Namespace) -> int:
    from agent.commands.page import write_page  # noqa: PLC0415 - only here
    from agent.commands.report import Unreachable, get_report, get_timeline  # noqa: PLC0415 - urllib, only here

    try:
        report = get_report(arguments.url)
        timeline = get_timeline(arguments.url) if arguments.html else {}
    except Unreachable as error:
        complain(f"{error}")
        return UNAVAILABLE
    try:
        if arguments.html:
            write_page(arguments.html, report, timeline)
        return _show(report, as_json=arguments.json, verbose=arguments.verbose)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
        complain(f"{arguments.url}: the answer is not a whole report of stallscope")
        return UNAVAILABLE


def _check_config(arguments: argparse.Namespace) -> int:
    config = _load(arguments)
    if config is None:
        return BAD_CONFIG
    from agent.settings.load import history_bytes, predicted_cpu_ratio  # noqa: PLC0415 - after the check
    from agent.settings.outside import remarks  # noqa: PLC0415 - same

    complain(*remarks(config, os.environ))
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
        f"# at most about {predicted_cpu_ratio(config) * 3600:.1f} CPU-seconds per hour, "
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
        complain(f"no such rule {arguments.rule!r}; known: {', '.join(BY_ID)}")
        return USAGE
    rule = BY_ID[arguments.rule]
    print(json.dumps(as_json(rule), indent=2) if arguments.json else as_text(rule))
    return HEALTHY


def _hooks(arguments: argparse.Namespace) -> int:
    try:
        print(hook_path(arguments.path) if arguments.path else hooks_overview())
    except FileNotFoundError as reason:
        complain(f"{reason}")
        return UNAVAILABLE
    return HEALTHY
