"""Foreign names as labels: bounded now and for good, and one printable line each."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from probes.labels import GONE_SECONDS, MOST_HELD, MOST_LABEL, Labels, printable


def test_labels_are_bounded_and_those_that_were_given_stay() -> None:
    labels = Labels()
    many = [f"q{n:03}" for n in range(37)]
    assert labels.admit(many, 32) == many[:32]
    assert labels.admit(["a", *many], 32) == many[:32]
    assert labels.admit(["a", *many[:31]], 32) == [*many[:31], "a"]


def test_a_source_whose_names_change_with_every_slot_runs_out_of_labels() -> None:
    labels, given = Labels(), set()
    for turn in range(10):
        given.update(labels.admit(f"{turn}-{n}" for n in range(32)))
    assert len(given) == MOST_HELD
    assert labels.admit(["fresh", "0-1"]) == ["0-1"]


def test_a_label_that_nobody_asks_for_any_more_goes_to_another_name() -> None:
    now = 0.0
    labels = Labels(lambda: now)
    labels.admit(f"old-{n:02}" for n in range(MOST_HELD))
    now = GONE_SECONDS - 1
    assert labels.admit(["old-00", "new"]) == ["old-00"]
    now = GONE_SECONDS
    assert labels.admit(["new", "newer"]) == ["new", "newer"]
    assert labels.admit(["old-00"]) == ["old-00"]
    assert labels.admit(["old-01"]) == ["old-01"]  # of those that are left the one given up next
    assert labels.admit([f"more-{n:02}" for n in range(MOST_HELD)]) == [f"more-{n:02}" for n in range(MOST_HELD - 4)]


@given(st.lists(st.lists(st.text(max_size=3), unique=True, max_size=20), max_size=10), st.integers(0, 8))
def test_what_is_admitted_was_asked_for_once_and_is_admitted_again(slots: list[list[str]], most: int) -> None:
    labels = Labels()
    for names in slots:
        admitted = labels.admit(names, most)
        assert len(admitted) <= most
        assert set(admitted) <= set(names)
        assert labels.admit(admitted) == sorted(admitted)


@given(st.text())
def test_a_label_is_one_printable_line(name: str) -> None:
    label = printable(name)
    assert label.isprintable() or not label
    assert len(label) <= MOST_LABEL
    label.encode()
