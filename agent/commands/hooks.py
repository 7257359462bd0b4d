"""``stallscope hooks``: where the files are that go into the app's own process, and how it loads them.

They come with this program, so that both are of one version; nothing here imports them.  ``os.path``, because
``stallscope exec`` asks before the app runs, and pathlib takes 8 ms to load.
"""

from __future__ import annotations

import os

#: By language: how the app's process loads its hook, with {path} for what ``hooks --path`` prints.
LOADED_BY = {
    "python": "PYTHONPATH={path}/auto",
    "node": "NODE_OPTIONS=--require={path}/stallscope-hook.js",
    "go": "go mod edit -require=stallscope@v0.0.0 -replace=stallscope={path}",
}
#: Beside our packages: in a wheel under a name that nobody else has, in a checkout as it is there.
INSTALLED = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_FOLDERS = ("stallscope_hooks", "hooks")


def hook_path(language: str, beside: str | os.PathLike[str] = INSTALLED) -> str:
    """The directory of this language's hook.  Raises FileNotFoundError where this installation has none."""
    for folder in _FOLDERS:
        if os.path.isdir(path := os.path.join(beside, folder, language)):
            return path
    raise FileNotFoundError(f"the {language} hook is not in this installation: no {' or '.join(_FOLDERS)} in {beside}")


def overview() -> str:
    """The environment variable that loads each hook, as a shell takes it; Go loads nothing at run time: the command for its module."""
    lines = [f"{language:<8}{how.format(path=hook_path(language))}" for language, how in LOADED_BY.items()]
    return "\n".join(["In the environment of the app's process, beside this agent (Go: in its module):", "", *lines])
