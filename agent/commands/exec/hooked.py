"""The app's environment with the hooks in it, so that no image has to be edited: ``stallscope exec --hooks``.

NODE_OPTIONS and PYTHONPATH, because children of the app inherit them and nothing has to be written: a ``.pth`` file is read from
the app's own site-packages alone, which may be read-only and which of several Pythons it is nobody here knows.
"""

from __future__ import annotations

import os

from agent.commands.hooks import INSTALLED, hook_path

LANGUAGES = ("python", "node")
NODE_HOOK, PYTHON_HOOK = "stallscope-hook.js", "stallscope_hook.py"
#: Where the agent listens unless it is told otherwise: the default of logs.hook_listen.
LISTEN = "udp:127.0.0.1:9769"


def add_hooks(
    environ: dict[bytes, bytes], languages: tuple[str, ...], listen: str = "", beside: str = INSTALLED
) -> list[str]:
    """Add what loads these hooks, to what is there; what has its hook already stays as it is.

    ``listen`` is where the agent was told to listen.  Returns what is wrong, one sentence each.
    """
    faults = []
    for language in languages:
        try:
            add = _python if language == "python" else _node
            add(environ, os.fsencode(hook_path(language, beside)))
        except (FileNotFoundError, ValueError) as fault:
            faults.append(str(fault))
    told = listen or os.fsdecode(environ.get(b"STALLSCOPE_LOGS__HOOK_LISTEN", b""))
    target = _target(told.partition(",")[0].strip() or LISTEN)
    if len(faults) < len(languages) and not environ.get(b"STALLSCOPE_HOOK"):
        environ[b"STALLSCOPE_HOOK"] = os.fsencode(target)
    return faults


def _target(place: str) -> str:
    """A place of logs.hook_listen as the hooks take it: there udp: and the brackets of ::1 may be left out."""
    if place.startswith(("unix:", "file:")):
        return place
    host, _, port = place.removeprefix("udp:").rpartition(":")
    return f"udp:[{host}]:{port}" if ":" in host and not host.startswith("[") else f"udp:{host}:{port}"


def _python(environ: dict[bytes, bytes], path: bytes) -> None:
    """In front: its sitecustomize.py runs the one that it hides."""
    directory, there = os.path.join(path, b"auto"), environ.get(b"PYTHONPATH", b"")
    if b":" in directory:
        raise ValueError(f"the python hook cannot be on PYTHONPATH: a colon in {os.fsdecode(directory)!r}")
    if not any(_is_auto(place) for place in there.split(b":")):
        environ[b"PYTHONPATH"] = directory + (b":" + there if there else b"")


def _is_auto(place: bytes) -> bool:
    hook = os.path.join(os.path.dirname(os.path.normpath(place)), os.fsencode(PYTHON_HOOK))
    return os.path.basename(os.path.normpath(place)) == b"auto" and os.path.isfile(hook)


def _node(environ: dict[bytes, bytes], path: bytes) -> None:
    """At the end: what the app itself loads first stays first.  Node splits at blanks, outside of double quotes."""
    file, there = os.path.join(path, os.fsencode(NODE_HOOK)), environ.get(b"NODE_OPTIONS", b"")
    if not os.path.isfile(file):  # Node ends at once when it is missing
        raise FileNotFoundError(f"the node hook is not in this installation: no {os.fsdecode(file)}")
    if os.fsencode(NODE_HOOK) not in there:
        quoted = file.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
        option = b'--require="' + quoted + b'"' if quoted != file or b" " in file else b"--require=" + file
        environ[b"NODE_OPTIONS"] = there + (b" " if there else b"") + option
