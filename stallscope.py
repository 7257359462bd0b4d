"""The ``stallscope`` command: makes Python find this program's own packages, whatever the app has lying around, and starts it.

They are called ``agent``, ``probes`` and ``exporters``, and an app may have folders with these names, or a ``calendar.py``.
Python looks into PYTHONPATH before all else, with ``python -m`` into the current directory as well, and beside an app both are the
app's.  So what comes before the standard library moves to the end, where a dependency that lies there alone is still found.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # neither is loaded: `exec` starts the app before anything that takes time
    from collections.abc import Sequence
    from typing import Any, NoReturn

PACKAGES = ("agent", "probes", "exporters")
#: agent.commands.exits.UNAVAILABLE, which may be what cannot be imported.
UNAVAILABLE = 69


def own_first(path: Sequence[str], own: str, standard: str) -> list[str]:
    """Reorder ``sys.path``: standard library, the directory ``own``, what is installed, and last what came before all that.

    ``standard`` is the directory of the standard library; Python has it once, between PYTHONPATH and what is installed.
    """
    zipped = f"{os.path.dirname(standard)}/python{sys.version_info.major}{sys.version_info.minor}.zip"
    library = [each for each in path if each in {zipped, standard, f"{standard}/lib-dynload"}]
    foreign = path.index(standard) if standard in path else 0
    return list(dict.fromkeys([*library, own, *path[foreign:], *path[:foreign]]))


def _leave(number: int, _: Any) -> NoReturn:
    """End at once, without a traceback from wherever an import was: nothing has been begun that would not end by itself.

    ``run`` does what it is told, as later on; other commands have not done what was asked of them.
    """
    os.write(2, b"stallscope: told to stop while starting\n")
    os._exit(0 if sys.argv[1:2] == ["run"] else 128 + number)


def _hear_signals() -> None:
    """From the first moment: the kernel throws away what PID 1 has no handler for, and Python's own raises in any import."""
    import signal  # noqa: PLC0415 - not for `exec`, which has another way

    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    app_first = sys.argv[1:2] == ["exec"]
    if not app_first:
        _hear_signals()
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = own_first(sys.path, own, os.path.dirname(os.__file__))
    for package in PACKAGES:  # a sitecustomize of the app's may have imported the app's
        if (found := sys.modules.get(package)) and found.__file__ != os.path.join(own, package, "__init__.py"):
            for name in [each for each in sys.modules if each == package or each.startswith(f"{package}.")]:
                del sys.modules[name]
    try:
        if app_first:
            from agent.commands.exec import main as start_app  # noqa: PLC0415 - found only now

            start_app(sys.argv[2:], os.path.abspath(__file__))  # returns when help is asked for
        from agent.commands.cli import main as command  # noqa: PLC0415 - found only now

        sys.exit(command())
    except (MemoryError, ImportError) as error:  # a library that found no room is an ImportError
        os.write(2, f"stallscope: cannot start: {str(error) or 'out of memory'}\n".encode("utf-8", "replace"))
        sys.exit(UNAVAILABLE)


if __name__ == "__main__":
    main()
