"""The cgroup of the app's process, and what it wants of its CPU limit: not the agent's when the two run in containers of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from probes.app.processes import ProcessesReading, are_watched
from probes.app.search import App, Found, chosen, has_name
from probes.host.cgroup import CgroupProbe, CgroupReading
from probes.host.demand import DemandProbe, DemandReading
from probes.host.platform import in_gvisor
from probes.host.registration import Cgroup, counts, demand_plan
from probes.kernel_files import read_text
from probes.reading import NoData, Probe, Reading, Unseen
from probes.registration import Context, Planned, Registration


class OfAppProbe:
    """A probe of the groups of the app's process, in a shared PID namespace.

    ``find`` looks for the process; ``still`` says whether this one is still it, so that it need not be looked for; ``make`` makes
    the probe of a process.
    """

    target = "app"

    def __init__(
        self, kind: type[CgroupProbe | DemandProbe], find: Callable[[], Found], still: Callable[[int], bool],
        make: Callable[[str], Probe[Reading]],
    ) -> None:  # fmt: skip
        self.name, self.reading_type = kind.name, kind.reading_type
        self._find, self._still, self._make = find, still, make
        self._found: tuple[int, Probe[Reading]] | None = None

    async def read(self) -> Reading:
        """Find the process again when it is gone, and read its groups."""
        if self._found is None or not self._still(self._found[0]):
            found = self._find()
            if not found.pids:
                raise NoData(found.because, found.remedy)
            self._found = (found.pids[0], self._make(str(found.pids[0])))
        return await self._found[1].read()

    async def aclose(self) -> None:
        """Nothing is held open."""


def probes(context: Context) -> Iterator[Planned]:
    """The groups of the process that the settings name; else of the connections' owners, once they are seen to be others."""
    app, root = context.settings(App), context.root
    find, still, when = lambda: _owners(context), lambda pid: is_of_the_first(context, pid), None
    if app.process or app.pid:
        find = lambda: chosen(root, app.process, app.pid, context.child_pid())  # noqa: E731
        still = lambda pid: bool(app.pid) or has_name(root, pid, app.process)  # noqa: E731
    elif are_watched(context):
        when = lambda: _in_another_group(context)  # noqa: E731
    else:
        return
    yield Planned(
        make=lambda: OfAppProbe(CgroupProbe, find, still, lambda pid: CgroupProbe("app", root=root, pid=pid)),
        every=context.settings(Cgroup).every_seconds, cpu_seconds=0.0, history_bytes=0, when=when,
    )  # fmt: skip
    plan = demand_plan(context, "app", lambda make: OfAppProbe(DemandProbe, find, still, make))
    yield replace(plan, when=lambda: (counts(context) or _counted(context)) and (when is None or when()))


REGISTRATION = Registration(probes, readings=(CgroupReading, DemandReading))


def _counted(context: Context) -> bool:
    """Whether the throttled periods of the app's group are read, although the agent's own are not."""
    latest = context.latest(CgroupReading, OfAppProbe.target)
    return latest is not None and latest.throttled_seconds is not None and not in_gvisor(context)


def _owners(context: Context) -> Found:
    """Of the connections, as the probe of the processes has them, or its reason."""
    missing = context.app_missing()
    return Found(context.app_pids(), Unseen(missing.because, missing.code), missing.remedy)


def is_of_the_first(context: Context, pid: int) -> bool:
    """Whether this one is among the app's processes still, and in the cgroups of the first of them."""
    pids = context.app_pids()
    if pid not in pids:
        return False
    try:
        return pid == pids[0] or _cgroups(context.root, pid) == _cgroups(context.root, pids[0])
    except OSError:
        return False  # one of them has ended


def _cgroups(root: Path, pid: int) -> str:
    return read_text(f"{root}/proc/{pid}/cgroup")


def _in_another_group(context: Context) -> bool:
    owners = context.latest(ProcessesReading)
    return owners is not None and owners.own_group is False
