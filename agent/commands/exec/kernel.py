"""What the supervisor asks of the kernel: small functions that raise nothing, because nothing may take the app down."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
else:
    import _signal as signal  # agent.commands.exec says why

PR_SET_CHILD_SUBREAPER = 36
#: Threads of the app that are looked at.
MOST_THREADS = 64


def null_device() -> int:
    """A descriptor that takes everything and gives nothing."""
    try:
        return os.open(os.devnull, os.O_RDWR)
    except OSError:  # no /dev: a pipe that nobody reads
        reader, writer = os.pipe()
        os.close(reader)
        return writer


def has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def adopt_orphans() -> None:
    """What the app's processes leave behind comes to us, as it does to PID 1: prctl(2), for which Python has no name."""
    if os.getpid() == 1:
        return
    try:
        import _ctypes  # noqa: PLC0415 - not there in every build; ctypes itself takes five times as long to load

        prctl = _ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_NOW), "prctl")  # type: ignore[arg-type] # as ctypes.CDLL(None) does
        _ctypes.call_function(prctl, (PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    except (ImportError, AttributeError, OSError):
        pass  # they go to the next one above us


def computes(first: int, proc: str = "/proc") -> bool:
    """Whether a thread of this process or of one below it runs, is ready to, or waits for a disk: proc(5)."""
    left, looked = [first], 0
    while left and looked < MOST_THREADS:
        directory = f"{proc}/{left.pop()}/task"
        try:
            for thread in os.listdir(directory)[: MOST_THREADS - looked]:
                looked += 1
                if _read(f"{directory}/{thread}/stat").rpartition(b") ")[2][:1] in (b"R", b"D"):
                    return True
                left += [int(pid) for pid in _read(f"{directory}/{thread}/children").split()]
        except OSError:
            pass  # it has ended, or the kernel has no list of children
    return False


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)


def stop_as(number: int) -> None:
    """Stop as the app did, until somebody continues us."""
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})


def first_to_go(pid: int) -> None:
    """When the container's memory is used up the kernel takes the agent, not the app: proc(5), oom_score_adj."""
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
        try:
            os.write(fd, b"1000")
        finally:
            os.close(fd)
    except OSError:
        pass


def kill(pid: int, number: int) -> None:
    """Send a signal, if the process is there."""
    try:
        os.kill(pid, number)
    except OSError:
        pass


def close(*descriptors: int) -> None:
    """Close those that are open; -1 is none."""
    for fd in descriptors:
        if fd >= 0:
            try:
                os.close(fd)
            except OSError:
                pass


def tell(text: str) -> None:
    """Write to standard error, if somebody takes it."""
    try:
        os.write(2, text.encode("utf-8", "backslashreplace"))
    except OSError:
        pass
