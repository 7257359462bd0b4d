"""Private attributes of other libraries' objects, when any of them is missing or of another kind."""

from __future__ import annotations

import collections
import logging
import logging.handlers
import queue
import sys
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.unit.hooks.python.conftest import Stage, Thing
from tests.unit.hooks.python.libraries import LIBRARIES, WHOLE, google


class Place(NamedTuple):
    """An attribute, or a dictionary's key."""

    owner: Any
    name: str

    def set(self, value: object) -> None:
        self._names()[self.name] = value

    def delete(self) -> None:
        del self._names()[self.name]

    def _names(self) -> dict[str, Any]:
        return self.owner if isinstance(self.owner, dict) else vars(self.owner)


def places(thing: Any, seen: set[int], depth: int = 8) -> Iterator[Place]:
    """Everything that can be reached from a handler."""
    if depth == 0 or id(thing) in seen:
        return
    seen.add(id(thing))
    names = thing if isinstance(thing, dict) else getattr(thing, "__dict__", {})
    for name in list(names):
        yield Place(thing, name)
        yield from places(names[name], seen, depth - 1)
    for each in list(thing) if isinstance(thing, (collections.deque, list, tuple)) else ():
        yield from places(each, seen, depth - 1)


def each_place(library: str) -> Iterator[tuple[logging.Handler, Place]]:
    """A new handler for each place in it."""
    for number in range(len(list(places(LIBRARIES[library](), set())))):
        handler = LIBRARIES[library]()
        yield handler, list(places(handler, set()))[number]


@pytest.mark.parametrize("library", LIBRARIES)
def test_everything_is_read_when_everything_is_there(stage: Stage, library: str) -> None:
    handler = LIBRARIES[library]()
    assert stage.only() == WHOLE[library]
    assert handler


def left_out(stage: Stage, handler: logging.Handler, library: str, place: str) -> set[str]:
    """Keys that are missing in what is told of this handler alone; the others must be as they should."""
    stage.hook.queues.clear()
    stage.hook._said = ""
    logging._handlerList[:] = [weakref.ref(handler)]  # type: ignore[attr-defined]
    found = {key: value for each in stage.message()["queues"] for key, value in each.items() if key != "queue"}
    assert found.items() <= WHOLE[library].items(), f"{place}: {found}"
    return WHOLE[library].keys() - found.keys()


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_missing_is_left_out_and_the_rest_is_still_true(stage: Stage, library: str) -> None:
    missed: set[str] = set()
    for handler, place in each_place(library):
        place.delete()
        missed |= left_out(stage, handler, library, place.name)
    assert missed == WHOLE[library].keys()  # or nothing that matters was taken away


@pytest.mark.parametrize("value", [None, 0, -1.5, 1.8e12, "text", object(), {}], ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("library", LIBRARIES)
def test_what_is_of_another_kind_is_left_out(stage: Stage, library: str, value: object) -> None:
    for handler, place in each_place(library):
        if isinstance(place.owner, queue.Queue):  # its own qsize() is then believed
            continue
        place.set(value)
        left_out(stage, handler, library, place.name)


def test_without_logging_s_list_of_handlers_nothing_is_found(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = google()
    monkeypatch.setitem(sys.modules, "logging", Thing())
    assert stage.message()["queues"] == []
    assert handler
