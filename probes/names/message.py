"""A question to a name server and the head of its answer, as bytes.  Source: RFC 1035, 4.1."""

from __future__ import annotations

import struct
from typing import NamedTuple

_HEAD = struct.Struct(">6H")
_RECURSION_DESIRED, _IS_ANSWER, _RCODE = 0x0100, 0x8000, 0x000F
_A, _IN = 1, 1
#: Answer codes: none, and there is no such name.
NO_ERROR, NO_NAME = 0, 3


class Answer(NamedTuple):
    """What a name server said: its code, and how many records it gave."""

    code: int
    records: int


def question(number: int, name: str) -> bytes:
    """A question for the A records of this full name; ``number`` is its id.  Raises ValueError for what is no name."""
    labels = [label.encode("ascii") for label in name.split(".")]
    if not all(0 < len(label) < 64 for label in labels):
        raise ValueError(f"not a name: {name!r:.60}")
    packed = b"".join(bytes((len(label),)) + label for label in labels) + b"\0"
    return _HEAD.pack(number, _RECURSION_DESIRED, 1, 0, 0, 0) + packed + struct.pack(">HH", _A, _IN)


def answer(text: bytes, asked: bytes) -> Answer | None:
    """The answer in a datagram; ``None`` where it is none to this question."""
    if len(text) < _HEAD.size or text[:2] != asked[:2]:
        return None
    _, flags, _, records, _, _ = _HEAD.unpack_from(text)
    if not flags & _IS_ANSWER:
        return None
    # The question is repeated, its letters perhaps in another case.
    echo = text[_HEAD.size : len(asked)]
    if echo and echo.lower() != asked[_HEAD.size :].lower():
        return None
    return Answer(flags & _RCODE, records)
