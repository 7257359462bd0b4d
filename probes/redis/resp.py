"""The protocol of Redis, as far as five questions need it: RESP2, from bytes that may come from anybody.

Source: the Redis serialization protocol specification.  A reply has bounds (bytes in all, length of a line, elements, depth), and
what is outside of them is :class:`Malformed`; each byte is looked at once, however small the pieces in which it comes.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from probes.record import dataclass

#: INFO has some 10 kB; sixteen entries of the slow log at most 70 kB.
MOST_BYTES: Final = 1 << 20
#: A status or an error, or the header of what follows.
MOST_LINE: Final = 1024
MOST_ELEMENTS: Final = 1024
MOST_DEPTH: Final = 4
_END: Final = b"\r\n"


class Malformed(ValueError):
    """What came is no reply of such a server, or one beyond the bounds."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The server's error: its first word, which is a code, and the rest, which may hold names and is never shown."""

    code: str
    text: str = ""


Value = str | int | bytes | None | Refused | list["Value"]
_Steps = Generator[None, None, Value]


def command(*words: str) -> bytes:
    """One command as it is sent."""
    encoded = [word.encode() for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)


class Reply:
    """One reply in the making: :meth:`feed` it until it is whole."""

    def __init__(self) -> None:
        self._bytes, self._at, self._looked = bytearray(), 0, 0
        self._elements = 0
        self._steps = self._value(0)
        self.value: Value = None

    def feed(self, data: bytes) -> bool:
        """Take further bytes; whether the reply is whole.  Raises Malformed."""
        self._bytes += data
        if len(self._bytes) > MOST_BYTES:
            raise Malformed(f"longer than {MOST_BYTES} bytes")
        try:
            next(self._steps)
        except StopIteration as end:
            self.value = end.value
            return True
        return False

    @property
    def rest(self) -> bytes:
        """What came after the whole reply: of the next one."""
        return bytes(self._bytes[self._at :])

    def _value(self, depth: int) -> _Steps:
        line: bytes = yield from self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode("utf-8", "replace")
        if kind == b"-":
            code, _, text = rest.decode("utf-8", "replace").partition(" ")
            return Refused(code, text)
        if kind == b":":
            return _whole(rest)
        if kind not in (b"$", b"*"):
            raise Malformed("this is not the protocol of Redis")
        length = _whole(rest)
        if length == -1:
            return None
        if kind == b"$":
            return (yield from self._bulk(length))
        self._elements += length
        if length < 0 or depth >= MOST_DEPTH or self._elements > MOST_ELEMENTS:
            raise Malformed("a list that is too long or too deep")
        found: list[Value] = []
        for _ in range(length):
            each = yield from self._value(depth + 1)
            found.append(each)
        return found

    def _line(self) -> Generator[None, None, bytes]:
        while True:
            end = self._bytes.find(_END, max(self._at, self._looked - 1))
            if end - self._at > MOST_LINE or (end < 0 and len(self._bytes) - self._at > MOST_LINE):
                raise Malformed(f"a line of over {MOST_LINE} bytes")
            if end >= 0:
                line = bytes(self._bytes[self._at : end])
                self._at = self._looked = end + len(_END)
                return line
            self._looked = len(self._bytes)
            yield

    def _bulk(self, length: int) -> Generator[None, None, bytes]:
        if not 0 <= length <= MOST_BYTES:
            raise Malformed("a text of an impossible length")
        end = self._at + length
        while len(self._bytes) < end + len(_END):
            yield
        if self._bytes[end : end + len(_END)] != _END:
            raise Malformed("a text that does not end where it says")
        text = bytes(self._bytes[self._at : end])
        self._at = self._looked = end + len(_END)
        return text


def _whole(text: bytes) -> int:
    digits = text[1:] if text[:1] == b"-" else text
    if not digits.isdigit() or len(digits) > 19:
        raise Malformed("a number that is none")
    return int(text)
