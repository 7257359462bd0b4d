"""The app's runtimes in a made-up /proc: what is looked at, once, and what is said of what cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from probes.app.cpu_count import How
from probes.app.program import read_program
from probes.app.runtime import Fit, RuntimeProbe, RuntimeReading
from probes.reading import Code, NoData
from tests.unit.builders import FakeClock
from tests.unit.fake_kernel import FakeProcess, container_v2
from tests.unit.probes.app.runtimes.go_file import modules, program

FLOORED = modules("path\tapp", "dep\tgo.uber.org/automaxprocs\tv1.6.0\th1:x=")
PLAIN = modules("path\tapp")


class Scene:
    """A container with a limit, processes in it, and the probe that looks at them."""

    def __init__(self, root: Path, cpu_max: str = "194000 100000") -> None:
        self.fake = container_v2(root, cpu_max)
        self.pids: list[int] = []
        self.clock = FakeClock()
        again = root / str(root).lstrip("/")  # so that what exe links to is found below the process's root as well
        again.parent.mkdir(parents=True)
        again.symlink_to(root)
        self.probe = RuntimeProbe(lambda: tuple(self.pids), root=root, clock=self.clock, cpus=lambda: 16)

    def process(
        self, pid: int, name: str, path: str, head: bytes = b"\x7fELF", *, environ: str | None = "PATH=/bin\0", mask: str = "0-7",
        cmdline: str = "", started: int = 100, limit: str = "0::/", parent: int = 1,
    ) -> FakeProcess:  # fmt: skip
        made = FakeProcess(self.fake, pid, name, started=started, parent=parent).runs(path, head)
        self.fake.cgroups(limit, pid=str(pid))
        (made.directory / "root").symlink_to(self.fake.root)
        where = f"/proc/{pid}"
        self.fake.write(
            f"{where}/status", f"Name:\t{name}\nCpus_allowed:\tff\nCpus_allowed_list:\t{mask}\nMems_allowed:\t1\n"
        )
        self.fake.write(f"{where}/cmdline", cmdline)
        self.fake.write(f"{where}/maps", "7f00-7f01 r-xp 00000000 00:00 0 /lib/libc.so.6\n")
        if environ is not None:
            self.fake.write(f"{where}/environ", environ)
        self.pids.append(pid)
        return made

    def family(
        self, tree: dict[int, int], name: str = "gunicorn", path: str = "/usr/bin/python3.11",
        masks: Mapping[int, str] = MappingProxyType({}),
    ) -> dict[int, FakeProcess]:  # fmt: skip
        """Processes of one name, each with its parent."""
        made = {
            pid: self.process(pid, name, path, parent=parent, mask=masks.get(pid, "0-7"))
            for pid, parent in tree.items()
        }
        for parent in set(tree.values()):
            children = " ".join(str(pid) for pid, above in tree.items() if above == parent)
            self.fake.write(f"/proc/{parent}/task/{parent}/children", f"{children} ")
        return made

    def read(self) -> RuntimeReading:
        return asyncio.run(self.probe.read())

    def fit(self) -> Fit:
        (fit,) = self.read().fits.values()
        return fit


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_automaxprocs_in_the_build_and_a_limit_with_a_fraction_leave_one_cpu(scene: Scene) -> None:
    scene.process(60, "shop", "/app/shop", program(text=FLOORED))
    reading = scene.read()
    assert (reading.counted_cpus, reading.usable_cpus, reading.threads_at_once) == (
        {"shop": 1},
        {"shop": 1},
        {"shop": 1},
    )
    assert (reading.allowed_cpus, reading.machine_cpus, dict(reading.unseen)) == (8, 16, {})
    assert reading.fits["shop"].belief.how is How.ROUNDED_DOWN


def test_a_limit_that_changes_is_followed_by_those_who_follow_it(scene: Scene) -> None:
    scene.process(60, "follows", "/app/a", program(text=PLAIN))
    scene.process(61, "stays", "/app/b", program(text=FLOORED))
    assert scene.read().counted_cpus == {"follows": 2, "stays": 1}
    scene.fake.write("/sys/fs/cgroup/cpu.max", "500000 100000\n")
    assert scene.read().counted_cpus == {"follows": 5, "stays": 1}
    FakeProcess(scene.fake, 61, "stays", started=900)  # started anew under its old id
    assert scene.read().counted_cpus == {"follows": 5, "stays": 5}


def test_a_program_is_looked_into_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def counting(directory: str) -> object:
        looked.append(directory)
        return read_program(directory)

    monkeypatch.setattr("probes.app.runtime.read_program", counting)
    scene.process(60, "shop", "/app/shop", program(text=PLAIN))
    for _ in range(5):
        scene.read()
    assert len(looked) == 1


@pytest.mark.parametrize(
    ("environ", "how", "counts"),
    [
        ("GOMAXPROCS=3\0", How.SET, 3),
        ("A=1\0GOMAXPROCS=0\0", How.ROUNDED_UP, 2),
        ("GOMAXPROCS=many\0", How.ROUNDED_UP, 2),
        ("GODEBUG=gctrace=1,containermaxprocs=0\0", How.MASK, 8),
        ("XGOMAXPROCS=3\0GOMAXPROCS\0=\0", How.ROUNDED_UP, 2),
        ("", How.ROUNDED_UP, 2),
    ],
)
def test_the_environment_of_a_go_program_counts(scene: Scene, environ: str, how: How, counts: int) -> None:
    scene.process(60, "shop", "/app/shop", program(text=PLAIN), environ=environ)
    belief = scene.fit().belief
    assert (belief.how, belief.counts) == (how, counts)


def test_nothing_but_the_named_numbers_of_an_environment_is_kept(scene: Scene) -> None:
    environ = "PASSWORD=hunter2\0GOMAXPROCS=hunter3\0GODEBUG=x=hunter4\0NODE_VERSION=hunter5\0"
    scene.process(60, "shop", "/app/shop", program(text=PLAIN), environ=environ)
    scene.process(61, "node", "/usr/bin/node", environ=environ)
    assert "hunter" not in repr(scene.read())


def test_an_environment_that_may_not_be_read_is_not_an_empty_one(scene: Scene) -> None:
    scene.process(60, "shop", "/app/shop", program(text=PLAIN), environ=None)
    scene.fake.break_file("/proc/60/environ")
    reading = scene.read()
    assert reading.counted_cpus is None
    assert "environment may not be read" in reading.unseen["counted_cpus"]
    assert reading.workers == {"shop": 1}


def test_a_group_that_cannot_be_seen_is_not_without_a_limit(scene: Scene) -> None:
    scene.process(60, "shop", "/app/shop", program(text=PLAIN))
    (scene.fake.root / "sys/fs/cgroup/cpu.max").unlink()
    scene.fake.break_file("/sys/fs/cgroup/cpu.max")
    belief = scene.fit().belief
    assert belief.counts is None
    assert "its CPU limit cannot be read" in str(belief.because)


def test_a_mask_is_a_bound(scene: Scene) -> None:
    scene.process(60, "shop", "/app/shop", program(text=PLAIN), mask="3")
    reading = scene.read()
    assert (reading.counted_cpus, reading.allowed_cpus) == ({"shop": 1}, 1)


@pytest.mark.parametrize("watched", [(61, 62, 63), (61,), (60, 61)], ids=str)
def test_workers_on_cpus_of_their_own_may_run_on_all_of_these(scene: Scene, watched: tuple[int, ...]) -> None:
    scene.family({60: 1, 61: 60, 62: 60, 63: 60}, "nginx", "/usr/sbin/nginx", {61: "0", 62: "1", 63: "0-1,5"})
    scene.pids[:] = watched
    reading = scene.read()
    assert (reading.allowed_cpus, reading.fits["nginx"].allowed_cpus) == (3, 1)


def test_what_names_do_together_is_bound_by_all_of_their_masks(scene: Scene) -> None:
    scene.process(60, "shop", "/app/shop", program(text=PLAIN), mask="0-1")
    scene.process(61, "mail", "/app/mail", program(text=PLAIN), mask="1-2")
    assert scene.read().allowed_cpus == 3


def test_a_mask_that_is_not_shown_is_no_bound(scene: Scene) -> None:
    scene.family({61: 1, 62: 1}, masks={61: "0"})
    scene.fake.write("/proc/62/status", "Name:\tgunicorn\n")
    assert scene.read().allowed_cpus == 16


@pytest.mark.parametrize(
    ("name", "path", "beside", "known"),
    [
        ("node", "/usr/local/bin/node", ("/usr/local/include/node/node_version.h",
         "#define NODE_MAJOR_VERSION 20\n#define NODE_MINOR_VERSION 11\n#define NODE_PATCH_VERSION 1\n"), ("node", "20.11.1", 1, 5)),
        ("python3", "/usr/bin/python3.12", None, ("python", "3.12", 1, 1)),
        ("gunicorn", "/usr/bin/python3.11", None, ("python", "3.11", 1, 1)),
        ("java", "/opt/jdk/bin/java", ("/opt/jdk/release", 'IMPLEMENTOR="x"\nJAVA_VERSION="17.0.9"\n'), ("java", "17.0.9", None, 2)),
        ("java", "/opt/jre/bin/java", ("/opt/jre/release", 'JAVA_VERSION="1.8.0_392"\n'), ("java", "8.0.392", None, 2)),
        ("nginx", "/usr/sbin/nginx", None, ("nginx", "", 1, 1)),
        ("ruby", "/usr/bin/ruby3.1", None, ("ruby", "3.1", 1, 1)),
    ],
)  # fmt: skip
def test_a_runtime_is_known_by_its_program(
    scene: Scene, name: str, path: str, beside: tuple[str, str] | None, known: tuple[str, str, int | None, int]
) -> None:
    scene.process(60, name, path)
    if beside is not None:
        scene.fake.write(*beside)
    fit = scene.fit()
    assert (fit.program.runtime, fit.program.version, fit.belief.usable, fit.belief.at_once) == known


def test_dotnet_is_known_by_its_library_where_the_program_has_a_name_of_its_own(scene: Scene) -> None:
    scene.process(60, "shop", "/app/shop")
    scene.fake.write(
        "/proc/60/maps", "7f r-xp 0 0:0 1 /usr/share/dotnet/shared/Microsoft.NETCore.App/8.0.11/libcoreclr.so\n"
    )
    fit = scene.fit()
    assert (fit.program.runtime, fit.program.version, fit.belief.counts) == ("dotnet", "8.0.11", 2)


@pytest.mark.parametrize(
    ("cmdline", "environ", "counts"),
    [
        ("java\0-XX:ActiveProcessorCount=3\0App", "", 3),
        ("java\0App", "JAVA_TOOL_OPTIONS=-Xmx1g -XX:ActiveProcessorCount=4\0", 4),
        ("java\0-XX:ActiveProcessorCount=3\0App", "JAVA_TOOL_OPTIONS=-XX:ActiveProcessorCount=4\0", 3),
        ("java\0-XX:ActiveProcessorCount=3\0App", "_JAVA_OPTIONS=-XX:ActiveProcessorCount=5\0", 5),
        ("java\0-XX:-UseContainerSupport\0App", "", 8),
        ("java\0-XX:-UseContainerSupport\0-XX:+UseContainerSupport\0App", "", 2),
        ("java\0@options\0App", "", None),
        ("java\0App\0me@example.com", "", 2),
    ],
)
def test_the_options_of_a_virtual_machine_count_in_their_order(
    scene: Scene, cmdline: str, environ: str, counts: int | None
) -> None:
    scene.process(60, "java", "/opt/jdk/bin/java", cmdline=cmdline, environ=environ)
    scene.fake.write("/opt/jdk/release", 'JAVA_VERSION="17.0.9"\n')
    assert scene.fit().belief.counts == counts


def test_workers_are_counted_with_those_who_hold_no_connection(scene: Scene) -> None:
    for pid in (60, 61, 62):
        scene.process(pid, "gunicorn", "/usr/bin/python3.11")
    scene.process(63, "gunicorn", "/usr/bin/python3.11", limit="0::/another")
    scene.pids[:] = [61]
    scene.fake.write("/proc/1/task/1/children", "60 61 62 63 64 ")
    reading = scene.read()
    assert (reading.workers, reading.usable_cpus) == ({"gunicorn": 3}, {"gunicorn": 3})


@pytest.mark.parametrize("watched", [(60, 61, 62), (61, 62), (61,), (60,)], ids=str)
@pytest.mark.parametrize(
    ("name", "path"), [("gunicorn", "/usr/bin/python3.11"), ("node", "/usr/bin/node"), ("nginx", "/usr/sbin/nginx")]
)
def test_a_master_that_waits_for_its_workers_is_none_however_the_app_was_named(
    scene: Scene, name: str, path: str, watched: tuple[int, ...]
) -> None:
    made = scene.family({60: 1, 61: 60, 62: 60}, name, path)
    scene.pids[:] = watched
    for look in range(3):  # it hands out connections, and its workers answer them
        made[60].thread(60, run=look * 9.0)
        for worker in (61, 62):
            made[worker].thread(worker, run=look * 50.0)
        reading = scene.read()
        assert (reading.workers, reading.usable_cpus) == ({name: 2}, {name: 2})
        scene.clock.advance(60)


@pytest.mark.parametrize("share", [1.0, 0.25], ids=["free", "held by a limit"])
def test_a_worker_that_computes_beside_a_helper_of_its_name_stays_one(scene: Scene, share: float) -> None:
    made = scene.family({60: 1, 61: 60, 62: 60})
    assert scene.read().workers == {"gunicorn": 2}
    scene.clock.advance(60)
    made |= scene.family({71: 61})
    for pid in (61, 62, 71):
        made[pid].thread(pid, run=60.0 * share)
    assert scene.read().workers == {"gunicorn": 3}
    scene.clock.advance(60)
    for pid in (62, 71):  # now the helper alone computes
        made[pid].thread(pid, run=120.0 * share)
    assert scene.read().workers == {"gunicorn": 2}


def test_a_later_master_with_the_id_of_one_that_computed_has_not_computed(scene: Scene) -> None:
    scene.family({60: 1, 61: 60})
    scene.read()
    scene.clock.advance(60)
    FakeProcess(scene.fake, 60, "gunicorn", started=900).thread(60, run=50.0)
    assert scene.read().workers == {"gunicorn": 1}


def test_a_supervisor_of_another_name_changes_nothing(scene: Scene) -> None:
    scene.process(50, "entrypoint.sh", "/bin/bash")
    scene.family({60: 50, 61: 50})
    assert scene.read().workers == {"entrypoint.sh": 1, "gunicorn": 2}


TRACKS = "/usr/bin/python3.12\0-c\0from multiprocessing.resource_tracker import main;main(5)\0"


@pytest.mark.parametrize("watched", [(60, 61, 62, 63), (62, 63), (62,)], ids=str)
def test_what_uvicorn_starts_beside_its_workers_is_none_of_them(scene: Scene, watched: tuple[int, ...]) -> None:
    """Of uvicorn --workers 2 three or four processes were counted, and three cores were no more than they can use."""
    scene.process(60, "uvicorn", "/usr/bin/python3.12")
    made = scene.family({61: 60, 62: 60, 63: 60}, "python3", "/usr/bin/python3.12")
    scene.fake.write("/proc/61/cmdline", TRACKS)
    scene.pids[:] = watched
    for look in range(3):
        for worker in (62, 63):
            made[worker].thread(worker, run=look * 50.0)
        reading = scene.read()
        assert sum((reading.workers or {}).values()) == sum((reading.usable_cpus or {}).values()) == 2
        scene.clock.advance(60)


def test_a_master_of_another_runtime_is_no_master(scene: Scene) -> None:
    """It waits for a helper, and may compute without it."""
    scene.process(60, "node", "/usr/bin/node")
    scene.process(61, "python3", "/usr/bin/python3.12", parent=60)
    scene.fake.write("/proc/60/task/60/children", "61 ")
    assert scene.read().workers == {"node": 1, "python3": 1}


def test_a_program_that_counts_cpus_itself_computes_beside_its_children(scene: Scene) -> None:
    scene.process(60, "shop", "/app/shop", program(text=PLAIN))
    scene.process(61, "shop", "/app/shop", program(text=PLAIN), parent=60)
    scene.fake.write("/proc/60/task/60/children", "61 ")
    assert scene.read().workers == {"shop": 2}


@pytest.mark.parametrize("broken", ["exe", "status", "cmdline", "maps", "environ", "cgroup"])
def test_whatever_is_missing_of_a_process_is_no_fault(scene: Scene, broken: str) -> None:
    made = scene.process(60, "java", "/opt/jdk/bin/java")
    scene.process(61, "shop", "/app/shop", program(text=PLAIN))
    (made.directory / broken).unlink()
    assert "shop" in scene.read().fits


def test_a_replaced_program_is_still_known(scene: Scene) -> None:
    made = scene.process(60, "MainThread", "/usr/bin/node")
    (made.directory / "exe").unlink()
    (made.directory / "exe").symlink_to("/usr/bin/node (deleted)")
    assert scene.fit().program.runtime == "node"


def test_processes_that_ended_are_no_data(scene: Scene) -> None:
    scene.process(60, "shop", "/app/shop", program(text=PLAIN)).end()
    with pytest.raises(NoData) as caught:
        scene.read()
    assert caught.value.code is Code.UNREACHABLE
