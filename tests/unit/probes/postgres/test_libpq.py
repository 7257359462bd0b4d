"""The database library, of which no more is loaded than what is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
FIRST = "import sys\nfrom probes.postgres.libpq import Error, pq\n"


def run(script: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", script], check=True, timeout=60, cwd=ROOT, capture_output=True, text=True
    ).stdout


def test_nothing_of_what_stands_on_the_low_level_is_loaded() -> None:
    loaded = run(FIRST + "print(*sorted(name for name in sys.modules if name.startswith('psycopg')))").split()
    assert "psycopg.pq" in loaded
    assert not {
        "psycopg.cursor",
        "psycopg.connection",
        "psycopg.conninfo",
        "psycopg.types.json",
        "psycopg_binary._psycopg",
    } & set(loaded)


def test_neither_pythons_openssl_nor_what_looks_versions_up_is_loaded_and_both_can_be_afterwards() -> None:
    without = "import sys\nsys.modules['ssl'] = None\nimport asyncio\ndel sys.modules['ssl']\n"
    loaded = run(without + FIRST + "print(*sys.modules)").split()
    assert "psycopg_binary.pq" in loaded
    assert not {"ssl", "_ssl", "importlib.metadata", "ctypes", "_ctypes", "typing_extensions"} & set(loaded)
    after = "import ssl, psycopg, psycopg_binary, typing_extensions\ntyping_extensions.TypeVar('T', default=int)\nssl.create_default_context()\nfrom psycopg.pq import misc\nassert misc.ctypes.util.find_library('c')\nprint(psycopg_binary.__version__ == psycopg.__version__)"
    assert run(without + FIRST + after) == "True\n"


def test_who_imports_the_library_afterwards_gets_all_of_it_with_the_same_errors() -> None:
    after = "from psycopg import Error as same, pq as low\nimport psycopg\nfrom psycopg.rows import tuple_row\nassert same is Error and low is pq"
    after += "\nassert psycopg.errors.Error is Error and psycopg.conninfo.pq is pq and not hasattr(psycopg, 'nothing')"
    assert run(f"{FIRST}{after}\nprint(psycopg.connect.__name__)") == "connect\n"


def test_a_library_that_was_there_first_is_the_one_that_is_used() -> None:
    assert (
        run("import psycopg\n" + FIRST + "assert psycopg.pq is pq\nprint(sys.modules['psycopg'] is psycopg)")
        == "True\n"
    )


@pytest.mark.parametrize("where", ["psycopg.errors", "psycopg_binary.pq"])
@pytest.mark.parametrize("broken", ["ImportError", "AttributeError"])
def test_a_library_that_cannot_be_taken_apart_is_loaded_whole(broken: str, where: str) -> None:
    """As a later release may be: a module of it that asks its package for a name."""
    script = (
        f"""
import sys
class Refusing:
    left = 1
    def find_spec(self, name, path=None, target=None):
        if name == "{where}" and self.left:
            self.left -= 1
            raise {broken}("no connect in psycopg")
sys.meta_path.insert(0, Refusing())
"""
        + FIRST
        + "import psycopg\nprint(psycopg.pq is pq, sys.modules['psycopg'] is psycopg, psycopg.Error is Error)"
    )
    assert run(script) == "True True True\n"
