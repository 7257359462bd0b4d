"""The cgroup of the app's process: its limits are not the agent's when the two run in containers of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from probes.cgroup import CgroupProbe
from probes.process_search import Found
from probes.reading import NoData, Reading


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
