"""Two ends of a pipe see the same whether or not somebody looks; the figures are those of `python -m tests.lab.pipe_pairs`."""

from __future__ import annotations

import signal

import pytest

from tests.lab.pipe_pairs import PIECE, SITUATIONS, measure

pytestmark = pytest.mark.timing(reason="compares the wall time of a pipe that is looked at and of one that is not")

SIZE = 0.1


@pytest.mark.parametrize("situation", SITUATIONS)
def test_both_ends_see_what_they_see_unwatched(situation: str) -> None:
    pairs = measure(situation, 3, SIZE)
    assert pairs.same == 3, pairs.row()
    assert pairs.looks >= 3
    _, pieces, _ = SITUATIONS[situation]
    status = {"reader dies": -signal.SIGPIPE, "writer dies": -signal.SIGKILL}.get(situation, 0)
    assert {(each.taken, each.status) for each in pairs.watched} == {(int(pieces * SIZE) * PIECE, status)}
    if pieces:
        assert pairs.ratio < 3, pairs.row()  # the machine is shared; a pipe that is held open would take for ever
