"""``stallscope exec``: starts the app as its child and the agent as another one, in the app's own container.

The app comes first: nothing is imported before it runs but this package and what Python has anyway.  No argparse, no contextlib, no
``signal``, whose enums alone take 10 ms of CPU (a fifth of a second at a quota of 5 %) and 0.8 MB for as long as the app
lives.  What stays is this process: it waits for signals, passes them on and ends as the app ended.  The agent is a child that
nobody depends on.

A command line that is wrong ends with 64 before anything is started; everything else that can be wrong (settings, a port,
a file that is missing) is the agent's affair: the app runs, and one line says what the agent lacks.
"""

from __future__ import annotations

import os
import sys

from agent.commands.exec import app, supervisor

USAGE_LINE = "usage: stallscope exec [options] [--] COMMAND [ARGUMENT ...]"
#: agent.commands.exits.USAGE, which would be one more file to load.
USAGE = 64
#: Options that ``run`` has as well and is given, and our own, with what they may be: "" is anything.
PASSED_ON = ("--config", "--set", "--listen", "--web-config")
OWN = {
    "--hooks": (("none", "auto", "python", "node"), "hooks to load into the app's processes; auto is all"),
    "--lines": (("none", "stdout", "stderr"), "where the agent's JSON lines go"),
}
QUIET = "--quiet"


class WrongUsageError(Exception):
    """What is wrong with the command line."""


class Options:
    """The command line, taken apart: ``passed`` is for the agent, ``command`` is the app's."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.command: list[str] = []
        self.hooks, self.lines, self.quiet, self.help = "none", "none", False, False

    def setting(self, key: str) -> str:
        """The value of the last ``--set KEY=...``, "" without one."""
        pairs = [word.removeprefix("--set=").partition("=") for word in self.passed if word.startswith("--set=")]
        values = [value.strip() for name, _, value in pairs if name.strip() == key]
        return values[-1] if values else ""


def parse(words: list[str]) -> Options:
    """Take the words after ``exec`` apart.  Raises WrongUsageError."""
    options, left = Options(), list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        if word == "--":
            break
        if word in ("-h", "--help"):
            options.help = True
            return options
        if word == QUIET:
            options.quiet = True
        else:
            _take(options, word, left)
    options.command = left
    if not left:
        raise WrongUsageError("there is no command to start")
    return options


def _take(options: Options, word: str, left: list[str]) -> None:
    """An option that has a value, which is part of the word or the first of those that are left."""
    name, equals, value = word.partition("=")
    if name not in (*PASSED_ON, *OWN):
        raise WrongUsageError(f"unknown option {word!r}; known: {', '.join((*PASSED_ON, *OWN, QUIET))}")
    if not equals:
        if not left:
            raise WrongUsageError(f"{name} needs a value")
        value = left.pop(0)
    if name in PASSED_ON:
        options.passed.append(f"{name}={value}")
    elif value in OWN[name][0]:
        setattr(options, name.removeprefix("--"), value)
    else:
        raise WrongUsageError(f"{name} {value!r}: must be one of {', '.join(OWN[name][0])}")


def main(words: list[str], program: str) -> None:
    """Run the app and end with its status; returns only when help is asked for.  ``program`` is stallscope.py."""
    try:
        options = parse(words)
    except WrongUsageError as fault:
        os.write(2, f"{USAGE_LINE}\nstallscope exec: {fault}\n".encode("utf-8", "backslashreplace"))
        os._exit(USAGE)
    if options.help:
        return
    environ = app.original_environment()
    if app.has_threads() and not sys.flags.no_site:
        # A sitecustomize of the app's has started one: it would take the signals that this thread waits for.
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-B", program, "exec", *words], environ)
    before = app.block_signals()
    faults: list[str] = []
    for_app = app.given_back(environ)
    if options.hooks != "none":
        from agent.commands.exec import hooked  # noqa: PLC0415 - only when asked for

        languages = hooked.LANGUAGES if options.hooks == "auto" else (options.hooks,)
        faults = hooked.add_hooks(for_app, languages, options.setting("logs.hook_listen"))
    agent = supervisor.AgentCommand(program, options.passed, environ, options.lines)
    supervisor.Supervisor(agent, before, quiet=options.quiet).run(options.command, for_app, faults)
