"""The process that stays: it waits for signals, passes them on, asks for ended children, and ends as the app ended.

Every signal is blocked from the start and taken with sigwaitinfo(2), so none is lost, none comes at the wrong moment, and
waiting costs nothing.  All are passed on but SIGKILL and SIGSTOP, which nobody can catch, and SIGCHLD.

*Without a controlling terminal* the app leads a process group of its own, as the first process of a container would:
``kill -- -$$`` works, and ``kill 0`` does not hit us.  *On a terminal* it stays in our group: that is the group which the
shell made for the job, other commands of a pipeline may be in it, and it is in the foreground.  What the terminal sends
(Ctrl-C, Ctrl-Z, a new size) goes to all of the group, so it is not passed on a second time; and when the app stops, we stop,
because it is us whom the shell waits for.

It holds nothing of the app's: its standard input and output and every inherited descriptor are closed once the app has
them, so whoever reads the other end of one sees its end when the app is through with it.
"""

from __future__ import annotations

import os
import sys
import time

from agent.commands.exec import app, kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, NoReturn
else:
    import _signal as signal  # agent.commands.exec says why

#: The agent's own start takes over half a second of CPU, which the app's start needs more: at a quota of 5 % both at once take
#: twice as long.  So it is looked each half second whether the app computes, and the agent is started when it has not done so
#: four times in a row, or after half a minute: an app that always computes is to be seen as well.
LOOK_SECONDS, CALM_LOOKS, MOST_LOOKS = 0.5, 4, 60
#: For the agent's last report, once the app has ended: a platform that stops a container gives it 10 s for all.
END_SECONDS = 3.0
#: A signal of the terminal's has this code, one that a process sent has another (sigaction(2)).
SI_KERNEL = 0x80
FROM_TERMINAL = (
    signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH,
    signal.SIGHUP, signal.SIGCONT,
)  # fmt: skip
#: A hang-up is for the leader of the session first: us, where without us it would be the app.
FOR_LEADER = (signal.SIGHUP, signal.SIGCONT)
#: While the agent makes its last report, each of these ends the waiting.
IMPATIENT = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
#: Of what the agent said before it ended, so much is repeated.
MOST_SAID = 400
#: What speaks for us must not live longer than this when nobody reads standard error.
SPEAK_SECONDS = 5


class AgentCommand:
    """How the agent is started: ``program`` is stallscope.py, ``lines`` where what it says goes."""

    def __init__(self, program: str, passed: list[str], environ: dict[bytes, bytes], lines: str) -> None:
        isolated = ["-I", "-B"] if sys.dont_write_bytecode else ["-I"]  # nothing of the app's PYTHONPATH
        own = ["run", "--until-stdin-ends", f"--set=app.parent={os.getpid()}"]
        self.words = [sys.executable, *isolated, program, *own, *passed]
        self.environ = {name: value for name, value in environ.items() if name != b"STALLSCOPE_HOOK"}
        self.lines = {"stdout": 1, "stderr": 2}.get(lines)


class Supervisor:
    """Two children, and whatever they leave behind."""

    def __init__(self, agent: AgentCommand, before: dict[str, Any], *, quiet: bool) -> None:
        self._command, self._before, self._quiet = agent, before, quiet
        self._app = self._agent = 0
        self._status: int | None = None
        self._looks = self._calm = 0
        self._terminal = kernel.has_terminal()
        self._leads = os.getsid(0) == os.getpid()
        self._lines = self._said = self._until_we_end = -1

    def run(self, command: list[str], environ: dict[bytes, bytes], faults: list[str]) -> NoReturn:
        """Start the app, then the agent; end when the app has ended."""
        kernel.adopt_orphans()
        try:
            self._app = app.start(command, environ, self._before, own_group=not self._terminal)
        except OSError as error:
            text = f"stallscope exec: {command[0]}: {error.strerror or error}\n"
            kernel.tell(text)
            os._exit(app.exit_code(error))
        due: float | None = time.monotonic() + LOOK_SECONDS
        self._let_go()
        for fault in faults:
            self._say(fault)
        while self._status is None:
            taken = _next_signal(due)
            if taken is None:
                due = self._agent_due()
            elif taken.si_signo == signal.SIGCHLD:
                self._ask_for_ended()
            else:
                self._pass_on(taken)
        self._end_agent()
        app.end_like(self._status)

    def _pass_on(self, taken: signal.struct_siginfo) -> None:
        number = taken.si_signo
        if self._terminal and taken.si_code == SI_KERNEL and number in FROM_TERMINAL:
            if not (self._leads and number in FOR_LEADER):
                return
        elif self._terminal and number == signal.SIGCONT and self._goes_on():
            return
        try:
            os.kill(self._app, number)
        except OSError:
            pass  # it has become another user, whom we may not signal: without us nobody else could either

    def _goes_on(self) -> bool:
        """Whether the app was continued together with us, as a shell's ``fg`` does with the group."""
        return os.waitid(os.P_PID, self._app, os.WCONTINUED | os.WNOHANG) is not None

    def _ask_for_ended(self) -> None:
        """All children that have ended: the app, the agent, and orphans of the app's, which come to us."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | (os.WUNTRACED if self._terminal else 0))
            except ChildProcessError:
                return
            if not pid:
                return
            if os.WIFSTOPPED(status):
                if pid == self._app:
                    kernel.stop_as(os.WSTOPSIG(status))
            elif pid == self._app:
                self._status = status
                kernel.close(2)  # whoever reads it need not wait for the agent
            elif pid == self._agent:
                self._agent = 0
                if self._status is None:
                    self._say(f"{self._how_it_ended(status)}; the app goes on without it")
                kernel.close(self._said, self._until_we_end)

    def _agent_due(self) -> float | None:
        """Start the agent when the app is through with its start; else say when to look again."""
        self._looks += 1
        self._calm = 0 if kernel.computes(self._app) else self._calm + 1
        if self._calm < CALM_LOOKS and self._looks < MOST_LOOKS:
            return time.monotonic() + LOOK_SECONDS
        self._start_agent()
        return None

    def _start_agent(self) -> None:
        ours: tuple[int, ...] = ()
        try:
            until, self._until_we_end = os.pipe()
            ours = (until,)
            self._said, says = os.pipe()
            ours = (until, says)
            for fd in (self._said, says):  # it must not wait for us either: what does not fit is not said
                os.set_blocking(fd, False)
            plumbing = [(os.POSIX_SPAWN_DUP2, until, 0), (os.POSIX_SPAWN_DUP2, says, 2)]
            plumbing.append((os.POSIX_SPAWN_DUP2, self._lines if self._lines >= 0 else 1, 1))
            self._agent = os.posix_spawn(
                self._command.words[0], self._command.words, self._command.environ, file_actions=plumbing,
                setsid=True, setsigmask=(), setsigdef=(signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM),
            )  # fmt: skip
        except (OSError, NotImplementedError) as error:
            self._say(f"the agent cannot be started: {error}; the app goes on without it")
        kernel.close(*ours, self._lines)
        if self._agent:
            kernel.first_to_go(self._agent)

    def _end_agent(self) -> None:
        """Let it make its last report, for a short time at most."""
        if not self._agent:
            return
        kernel.kill(self._agent, signal.SIGTERM)
        until = time.monotonic() + END_SECONDS
        while self._agent:
            taken = _next_signal(until)
            if taken is None or taken.si_signo in IMPATIENT:
                kernel.kill(self._agent, signal.SIGKILL)
                return
            if taken.si_signo == signal.SIGCHLD:
                self._ask_for_ended()

    def _how_it_ended(self, status: int) -> str:
        if os.WIFSIGNALED(status):
            return f"the agent was killed by signal {os.WTERMSIG(status)}"
        try:
            text = os.read(self._said, 1 << 16).decode("utf-8", "replace")
        except OSError:
            text = ""
        lines = [line for line in text.splitlines() if line.strip()]
        told = [line.removeprefix("stallscope: ") for line in lines if line.startswith("stallscope: ")] or lines[-1:]
        said = "".join(each if each.isprintable() else "?" for each in "; ".join(told))[:MOST_SAID]
        return f"the agent has ended with {os.WEXITSTATUS(status)}{said and ': '}{said}"

    def _say(self, text: str) -> None:
        """One line on standard error, by a child: nobody may be reading it, and we must not wait."""
        if self._quiet:
            return
        try:
            if os.fork():
                return
        except OSError:
            return
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SPEAK_SECONDS)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
            kernel.tell(f"stallscope exec: {text}\n")
        finally:
            os._exit(0)

    def _let_go(self) -> None:
        """Close what is the app's: all but standard error, and what the agent's lines go to."""
        try:
            null = kernel.null_device()
            while null <= 2:
                null = os.dup(null)  # those below it were closed, and a pipe of ours would get their numbers
            if self._command.lines is not None:
                self._lines = os.dup(self._command.lines)
            for fd in (0, 1):
                os.dup2(null, fd, inheritable=False)
        except OSError:
            pass  # no descriptor is left
        try:
            held = [int(name) for name in os.listdir("/proc/self/fd")]
        except OSError:
            held = list(range(1024))
        kernel.close(*(fd for fd in held if fd > 2 and fd != self._lines))


def _next_signal(until: float | None) -> signal.struct_siginfo | None:
    """The next signal; None when there is none until then."""
    if until is None:
        return signal.sigwaitinfo(signal.valid_signals())
    return signal.sigtimedwait(signal.valid_signals(), max(0.0, until - time.monotonic()))
