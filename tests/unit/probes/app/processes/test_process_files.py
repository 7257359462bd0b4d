"""What the kernel's files say, hostile or malformed as they may be."""

from __future__ import annotations

import pytest

from probes.app.procfs import guess_runtime, read_stat
from probes.app.search import chosen
from tests.unit.probes.app.processes.conftest import Scene


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("web) R 1 1 1 (", "web) R 1 1 1 ("),
        (":-) S 7", ":-) S 7"),
        ("a\nb) Z 0 0", "a?b) Z 0 0"),
        ("\x1b[31mred", "?[31mred"),
        ("\udcff\udcfe", "\ufffd\ufffd"),
        ("", "?"),
        ("(", "("),
    ],
)
def test_hostile_names_change_no_number_and_steer_no_terminal(scene: Scene, name: str, shown: str) -> None:
    web = scene.process(60, name).holds(71).thread(61, run=3.0, state="R")
    assert scene.read().processes == {shown: 1}
    stat = read_stat(str(web.directory / "task/61"))
    assert (stat.state, stat.cpu_seconds, stat.started) == ("R", 3.0, 100)


@pytest.mark.parametrize("name", ["web) R 1 (", "two words", "naïve"])
def test_a_name_is_found_beside_one_that_is_no_text(scene: Scene, name: str) -> None:
    scene.process(59, "\udcff\udcfe")
    scene.process(60, name)
    assert chosen(scene.fake.root, name, None).pids == (60,)


@pytest.mark.parametrize("text", ["", "60 (web", "60 (web) R 1", "60 web R " + "1 " * 40, "60 (web) R " + "x " * 40])
def test_a_malformed_stat_is_said_and_is_no_zero(scene: Scene, text: str) -> None:
    web = scene.process(60, "web").holds(71)
    (web.directory / "stat").write_text(text)
    assert "stat is malformed" in scene.nothing().because


@pytest.mark.parametrize("text", ["", "1 2", "1 x 3", "-1 2 3"])
def test_a_malformed_schedstat_is_said_and_is_no_zero(scene: Scene, text: str) -> None:
    web = scene.process(60, "web").holds(71)
    (web.directory / "task/60/schedstat").write_text(text)
    assert "schedstat is malformed" in scene.nothing().because


GO = b"\x7fELF" + bytes(0xF98) + b"\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0"


@pytest.mark.parametrize(
    ("program", "head", "runtime"),
    [
        ("/usr/bin/python3.11", b"", "python"),
        ("/usr/bin/uwsgi", b"", "python"),
        ("/usr/local/bin/node", b"", "node"),
        ("/opt/jdk/bin/java", b"", "java"),
        ("/app/server", GO, "go"),
        ("/app/server", b"\x7fELF Go", "other"),
        ("/app/nodemon-like", b"", "other"),
        ("/app/javascript", b"", "other"),
    ],
)
def test_the_runtime_is_guessed_by_the_program(scene: Scene, program: str, head: bytes, runtime: str) -> None:
    scene.process(60, "web").holds(71).runs(program, head)
    assert scene.read().runtimes == {"web": runtime}


def test_without_permission_to_see_the_program_its_name_must_do(scene: Scene) -> None:
    assert guess_runtime(str(scene.process(60, "node").directory)) == "node"
    assert guess_runtime(str(scene.process(61, "server").directory)) == "other"
    assert guess_runtime("/nowhere") == "other"
