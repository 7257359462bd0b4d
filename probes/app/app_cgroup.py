"""The cgroup of the app's process: its limits are not the agent's when the two run in containers of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from probes.app.processes import ENDED, ProcessesReading, are_watched
from probes.app.search import App, Found, chosen, has_name
from probes.host.cgroup import CgroupProbe, CgroupReading
from probes.host.registration import Cgroup
from probes.reading import NoData, Reading
from probes.registration import Context, Planned, Registration


class AppCgroupProbe:
    """The cgroup of the app's process, in a shared PID namespace.

    ``find`` looks for the process; ``still`` says whether this one is still it, so that it need not be looked for.
    """

    name = "cgroup"
    target = "app"
    reading_type = CgroupProbe.reading_type

    def __init__(self, find: Callable[[], Found], still: Callable[[int], bool], root: Path) -> None:
        self._find, self._still, self._root = find, still, root
        self._found: tuple[int, CgroupProbe] | None = None

    async def read(self) -> Reading:
        """Find the process again when it is gone, and read its groups."""
        if self._found is None or not self._still(self._found[0]):
            found = self._find()
            if not found.pids:
                raise NoData(found.because, found.remedy)
            self._found = (found.pids[0], CgroupProbe("app", root=self._root, pid=str(found.pids[0])))
        return await self._found[1].read()

    async def aclose(self) -> None:
        """Nothing is held open."""


def probes(context: Context) -> Iterator[Planned]:
    """The group of the process that the settings name; else that of the connections' owners, once it is seen to be another."""
    app, root = context.settings(App), context.root
    every = context.settings(Cgroup).every_seconds
    if app.process or app.pid:
        yield Planned(
            make=lambda: AppCgroupProbe(
                lambda: chosen(root, app.process, app.pid, context.child_pid()),
                lambda pid: bool(app.pid) or has_name(root, pid, app.process),
                root,
            ),
            every=every,
            cpu_seconds=0.0,
            history_bytes=0,
        )
    elif are_watched(context):
        yield Planned(
            make=lambda: AppCgroupProbe(
                lambda: Found(context.app_pids(), ENDED),
                lambda pid: pid in context.app_pids(),
                root,
            ),
            every=every,
            cpu_seconds=0.0,
            history_bytes=0,
            when=lambda: _in_another_group(context),
        )


REGISTRATION = Registration(probes, readings=(CgroupReading,))


def _in_another_group(context: Context) -> bool:
    owners = context.latest(ProcessesReading)
    return owners is not None and owners.own_group is False
