"""The app as it would be without us: its environment, where its program is found, and how its end is repeated.

Exit codes are those of ``env`` (POSIX 2.9.1.3, coreutils): 127 where there is no such program, 126 where it cannot be executed.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn
else:
    import _signal as signal  # what it wraps, without its enums: agent.commands.exec

NOT_FOUND, CANNOT_EXECUTE = 127, 126
#: Where a program is looked for without PATH: confstr(_CS_PATH).
DEFAULT_PATH = b"/bin:/usr/bin"
#: A directory of PATH that gives one of these is passed over, as execvp(3) does.
_PASSED_OVER = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ESTALE, errno.ENODEV, errno.ETIMEDOUT)
#: Python ignores these from its start; whether they were ignored before cannot be told any more.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def original_environment(path: str = "/proc/self/environ") -> dict[bytes, bytes]:
    """What this process was given.

    Not ``os.environ``: in the C locale Python puts an LC_CTYPE into that (PEP 538), and a sitecustomize may have put more.
    """
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            block = b""
            while part := os.read(fd, 1 << 17):
                block += part
        finally:
            os.close(fd)
    except OSError:
        return dict(os.environb)  # no /proc
    found: dict[bytes, bytes] = {}
    for entry in block.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if name and equals:
            found.setdefault(name, value)  # getenv(3) takes the first
    return found


def given_back(environ: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The app's environment: the image's launcher keeps the loader's variables from our own Python, as LD-PRELOAD and the like."""
    return {b"LD_" + name[3:] if name.startswith(b"LD-") else name: value for name, value in environ.items()}


def has_threads(path: str = "/proc/self/task") -> bool:
    """Whether this process has a thread besides its main one."""
    try:
        return len(os.listdir(path)) > 1
    except OSError:
        return False


def block_signals() -> dict[str, Any]:
    """Block every signal, and let ended children be asked for.  Returns what the app is to have instead."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    before = signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # ignored, as some parents leave it, the status would be lost
    return {"mask": mask, "children": before}


def start(command: list[str], environ: dict[bytes, bytes], before: dict[str, Any], *, own_group: bool) -> int:
    """Start the app and return its id; ``own_group``: as the leader of a process group.  Raises OSError like execvp(3).

    By fork(2): glibc's posix_spawn(3) leaves two signals ignored that were not.
    """
    failed, fails = os.pipe()  # closed by the exec
    pid = os.fork()
    if not pid:
        try:
            if own_group:
                os.setpgid(0, 0)
            for number in _IGNORED_BY_PYTHON:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGCHLD, before["children"])
            signal.pthread_sigmask(signal.SIG_SETMASK, before["mask"])
            _become(command, environ)
        except OSError as error:
            os.write(fails, str(error.errno).encode())
        finally:
            os._exit(CANNOT_EXECUTE)
    os.close(fails)
    why = int(os.read(failed, 16) or 0)
    os.close(failed)
    if why:
        os.waitpid(pid, 0)
        raise OSError(why, os.strerror(why))
    return pid


def _become(command: list[str], environ: dict[bytes, bytes]) -> NoReturn:
    """Execute the program: where it says, or the first on PATH that can be.  Raises OSError."""
    name = os.fsencode(command[0])
    if b"/" in name:
        _execute(name, command, environ)
    refused = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for place in environ.get(b"PATH", DEFAULT_PATH).split(b":") if name else ():
        try:
            _execute(os.path.join(place or b".", name), command, environ)
        except OSError as error:
            if error.errno not in _PASSED_OVER:
                raise
            if error.errno == errno.EACCES:
                refused = error
    raise refused


def _execute(path: bytes, command: list[str], environ: dict[bytes, bytes]) -> NoReturn:
    try:
        os.execve(path, command, environ)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        os.execve(b"/bin/sh", [b"/bin/sh", path, *map(os.fsencode, command[1:])], environ)  # execvp(3): no #! line


def exit_code(error: OSError) -> int:
    """How ``env`` would end when the program cannot be started."""
    return NOT_FOUND if error.errno == errno.ENOENT else CANNOT_EXECUTE


def end_like(status: int) -> NoReturn:
    """End as the app did, whose wait status this is: with its code, or by its signal where that can kill us (not as PID 1)."""
    if not os.WIFSIGNALED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    try:
        import resource  # noqa: PLC0415 - one file less to load before the app runs

        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        if hard:  # a core of ours would cover the app's: 1 byte is too little for one, piped ones included (core(5))
            resource.setrlimit(resource.RLIMIT_CORE, (1, hard))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    except (OSError, ValueError, ImportError):
        pass
    os._exit(128 + number)
