"""What the command line takes: every command, its flags and what may stand there."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from agent import __version__
from agent.commands.bench.flags import DSN_WORDS, add_bench
from agent.commands.exec import OWN as EXEC_OPTIONS
from agent.commands.exec import USAGE_LINE as EXEC_USAGE
from agent.commands.exits import USAGE
from agent.commands.hooks import LOADED_BY
from exporters import terminal

#: What ``demo`` can make; ``agent.commands.demo.stalls`` has the table, which takes a while to load.
STALLS = ("throttle", "lock", "slow-query", "network", "logs")
SHELLS = ("bash", "zsh", "fish")

_EXEC = """Starts COMMAND with the descriptors, the environment and the user that it would have anyway, passes signals on to it,
asks for ended children, and ends as it ends: with its exit code, or by its signal (as PID 1: 128 + the signal).
The agent is started as another child when COMMAND has not computed for two seconds, after half a minute at the latest.
Nothing depends on it: when its settings are wrong, its port is taken or it is killed, one line says so and COMMAND goes on.

127: there is no such COMMAND; 126: it cannot be executed; 64: this command line is wrong."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

#: A command: arguments to exit code.
Handler = Callable[[argparse.Namespace], int]


class _Formatter(argparse.HelpFormatter):
    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **{"width": terminal.size().columns - 2, **options})


class _AsWritten(_Formatter, argparse.RawDescriptionHelpFormatter):
    pass


class _Parser(argparse.ArgumentParser):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _Formatter, **options})

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def build_parser(handlers: Mapping[str, Handler]) -> argparse.ArgumentParser:
    """The parser; ``arguments.command`` is the handler of the command that was named, and of "" where none was."""
    parser = _Parser(
        prog="stallscope",
        description="Why is this service slow: database, network, CPU taken away, or logs piling up?",
    )
    parser.add_argument("-V", "--version", action="version", version=f"stallscope {__version__}")
    parser.set_defaults(command=handlers[""])
    commands = parser.add_subparsers(metavar="COMMAND")
    settings, output, whole = _Parser(add_help=False), _Parser(add_help=False), _Parser(add_help=False)
    settings.add_argument("--config", type=Path, metavar="FILE", help="settings in TOML")
    settings.add_argument(
        "--set", action="append", default=[], type=_pair, metavar="SECTION.KEY=VALUE", help="one setting; repeatable"
    )
    output.add_argument("--json", action="store_true", help="machine-readable output")
    whole.add_argument("-v", "--verbose", action="store_true", help="everything, not the opening alone")
    whole.add_argument(
        "--html", type=Path, metavar="FILE", help="write it as a page too, one file to send to a colleague"
    )

    def add(name: str, words: str, *parents: _Parser) -> _Parser:
        made = commands.add_parser(name, parents=parents, help=words)
        made.set_defaults(command=handlers[name])
        return made

    run = add("run", "measure and serve until told to stop", settings, output)
    _add_serving(run)
    run.add_argument(
        "--embedded-postgres", action="store_true", help="start a PostgreSQL of our own and watch it, for a first look"
    )
    run.add_argument("--until-stdin-ends", action="store_true", help=argparse.SUPPRESS)  # how `exec` starts it
    _add_exec(
        commands.add_parser(
            "exec", parents=[settings], help="start the app as the first process of its container, and the agent beside it",
            usage=EXEC_USAGE.removeprefix("usage: "), description=_EXEC, formatter_class=_AsWritten,
        )
    )  # fmt: skip
    doctor = add("doctor", "measure now and print a report", settings, output, whole)
    doctor.add_argument(
        "--for", dest="seconds", type=duration, default=30.0, metavar="DURATION", help="how long (default 30s)"
    )
    _add_look_at(doctor)
    demo = add("demo", "make a stall here, on a PostgreSQL of our own, and watch it being found")
    demo.add_argument("stall", choices=STALLS, metavar="STALL", help=", ".join(STALLS))
    report = add("report", "the report of a running agent", output, whole)
    report.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help="the address of the agent or of one of its pages (default: that on this machine)",
    )
    _add_login(report)
    _add_fleet(add("fleet", "all instances of a service, asked of the Prometheus that scrapes them", output))
    mcp = add("mcp", "tools for an assistant, over standard input and output (Model Context Protocol)", settings)
    mcp.add_argument("url", metavar="URL", nargs="?", help="the agent to ask (default: that on this machine)")
    _add_login(mcp)
    add("check-config", "check the settings and show them", settings, output)
    explain = add("explain", "what a finding means and how it is judged", output)
    explain.add_argument("rule", nargs="?", metavar="RULE", help="one rule (default: list them)")
    hooks = add("hooks", "where the files are that the app's own process loads, and how")
    hooks.add_argument(
        "--path", choices=LOADED_BY, metavar="LANGUAGE", help=f"print this one's directory: {', '.join(LOADED_BY)}"
    )
    add_bench(add("bench", "how fast a database is from here, and what stands in the way"), settings, output)
    completion = add("completion", "a script by which a shell completes these commands")
    completion.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    return parser


def _add_serving(command: _Parser) -> None:
    command.add_argument(
        "--listen",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="address of the pages (default 127.0.0.1:9768); repeatable",
    )
    command.add_argument("--web-config", metavar="FILE", help="who may ask: TLS, users, tokens (http.web_config)")


def _add_login(command: _Parser) -> None:
    """For an agent that is not open to everybody."""
    command.add_argument(
        "--login-file", type=Path, metavar="FILE", help="what the agent asks for: a token, or USER:PASSWORD, in a file"
    )
    command.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="certificates of the authorities that may vouch for the agent"
    )


def _add_exec(execute: _Parser) -> None:
    """Only its help: stallscope.py takes ``exec`` to agent.commands.exec, which starts the app before any of this is loaded."""
    _add_serving(execute)
    for name, (values, words) in EXEC_OPTIONS.items():
        execute.add_argument(name, choices=values, help=f"{words}: {', '.join(values)} (default none)", metavar="WHICH")
    execute.add_argument("--quiet", action="store_true", help="say nothing when the agent cannot run or has ended")


def _add_look_at(doctor: _Parser) -> None:
    """Flags for a look at somebody's app without a file of settings."""
    look = doctor.add_argument_group("what to look at, instead of settings")
    look.add_argument("--pid", metavar="PID", help="a process of the app (app.pid)")
    look.add_argument(
        "--dsn",
        metavar="DSN",
        help=f"the database: {DSN_WORDS}",
    )
    look.add_argument(
        "--port",
        action="append",
        default=[],
        metavar="PORT",
        help="port of the servers that the app talks to (connections.ports); repeatable",
    )
    look.add_argument("--url", metavar="URL", help="the app's metrics page: requests in flight and connection pools")


def _add_fleet(fleet: _Parser) -> None:
    fleet.add_argument(
        "url", metavar="PROMETHEUS-URL", help="Prometheus, Managed Service for Prometheus, Mimir or Thanos, with its path prefix"
    )  # fmt: skip
    fleet.add_argument(
        "--match", default="", metavar="SELECTOR", help="""only instances with these labels, as in PromQL: 'job="shop",zone=~"eu-.*"'"""
    )  # fmt: skip
    fleet.add_argument(
        "--by", default="revision", metavar="LABEL",
        help="tell instances apart by this label (default: the revision, by revision, revision_name or pod_template_hash)",
    )  # fmt: skip
    fleet.add_argument(
        "--since", type=partial(duration, least=300, most=7 * 86400), default=3600.0, metavar="DURATION",
        help="how far to look back, 5m to 7d (default 1h)",
    )  # fmt: skip
    fleet.add_argument("--bearer-token-file", metavar="FILE", help="a file that holds the token for the engine")
    fleet.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="one more header, as X-Scope-OrgID: TENANT; repeatable"
    )  # fmt: skip


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or "." not in key:
        raise argparse.ArgumentTypeError(f"{text!r} is not SECTION.KEY=VALUE")
    return key.strip(), value.strip()


def duration(text: str, least: float = 3, most: float = 3600) -> float:
    """Seconds of ``30``, ``30s``, ``2m``, ``6h``, ``7d``; 3 s to 1 h unless told otherwise."""
    unit = _UNITS.get(text[-1:], 0.0)
    number = text[:-1] if unit else text
    try:
        seconds = float(number) * (unit or 1.0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration like 30s or 2m") from None
    if not least <= seconds <= most:
        raise argparse.ArgumentTypeError(f"{text!r} must be {_short(least)} to {_short(most)}")
    return seconds


def _short(seconds: float) -> str:
    """As :func:`duration` reads it, in the largest unit of which it is at least five; 60m, not 1h."""
    unit = next(each for each in reversed(_UNITS) if seconds >= 5 * _UNITS[each] or each == "s")
    return f"{seconds / _UNITS[unit]:g}{unit}"
