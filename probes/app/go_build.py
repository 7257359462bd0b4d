"""What a Go program says of its own build: the version of Go, its modules, and its GODEBUG defaults.

Sources: the package debug/buildinfo and cmd/link of Go.  The linker writes a block into the section .go.buildinfo (without one:
at the start of the data segment), stripped or not: a magic number, the size of a pointer, and flags.  Since Go 1.18 two strings
follow after 32 bytes, each after its length as a varint: version and modules.  Before, two pointers to string headers stood there.
The modules' text has a sentinel of 16 bytes at both ends; ``DefaultGODEBUG`` in it follows from the go line of go.mod.

The file may be anything, and whole programs are large: every length is bounded, and only what is named is read.

Over 150 lines: two widths, two byte orders and two formats of the block.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Iterator, Mapping
from dataclasses import field

from probes.record import dataclass

MAGIC = b"\xff Go buildinf:"
#: Sections and segments that are looked at; a Go program has some 25 and 10.
MOST_HEADERS = 512
#: Of the names of sections; of what is searched for the magic number where no section names it (debug/buildinfo: 64 KiB).
MOST_NAMES_BYTES = MOST_SEARCHED_BYTES = 1 << 16
#: Of the modules' text: 500 modules take 50 KiB.
MOST_TEXT_BYTES = 1 << 20
_ALIGN, _HEADER_BYTES = 16, 32
_VERSION = re.compile(r"go(\d{1,3})\.(\d{1,3})")
_WRITABLE, _LOAD = 2, 1


@dataclass(frozen=True, slots=True)
class GoBuild:
    """``version`` as Go spells it, "go1.25.3"; ``modules``: path -> version, ``None`` where the build says nothing of them."""

    version: str
    modules: Mapping[str, str] | None = None
    godebug: Mapping[str, str] = field(default_factory=dict)

    @property
    def release(self) -> tuple[int, int] | None:
        """(1, 25); ``None`` of a version that is no release."""
        found = _VERSION.search(self.version)
        return (int(found[1]), int(found[2])) if found else None


def read_build(path: str) -> GoBuild:
    """The build of the program in this file.  Raises OSError, and ValueError for what is no Go program."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(f"{path} is no file")
        return _Elf(fd).build()
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"{path} is malformed: {type(error).__name__}") from error
    finally:
        os.close(fd)


class _Elf:
    """As much of an ELF file (elf(5)) as leads to the block."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        head = self._read(0, 64)
        if head[:4] != b"\x7fELF" or head[4] not in (1, 2) or head[5] not in (1, 2):
            raise ValueError("no ELF file")
        self._wide, self._end = head[4] == 2, "<" if head[5] == 1 else ">"
        at, form = (32, "QQIHHHHHH") if self._wide else (28, "IIIHHHHHH")
        found = struct.unpack_from(f"{self._end}{form}", head, at)
        self._segments_at, self._sections_at, _, _, self._segment_bytes, self._segments, *rest = found
        self._section_bytes, self._sections, self._names = rest

    def build(self) -> GoBuild:
        for at, size in (*self._named(b".go.buildinfo"), *self._data()):
            block = self._read(at, min(size, MOST_SEARCHED_BYTES))
            found = next((n for n in range(0, len(block), _ALIGN) if block.startswith(MAGIC, n)), None)
            if found is not None:
                return self._block(at + found)
        raise ValueError("no build information of Go")

    def _read(self, at: int, size: int) -> bytes:
        return os.pread(self._fd, size, at)

    def _section(self, number: int) -> tuple[int, int, int]:
        """(place of its name, place in the file, bytes)."""
        form, fields = ("IIQQQQ", (0, 4, 5)) if self._wide else ("IIIIII", (0, 4, 5))
        form = f"{self._end}{form}"
        found = struct.unpack(form, self._read(self._sections_at + number * self._section_bytes, struct.calcsize(form)))
        return found[fields[0]], found[fields[1]], found[fields[2]]

    def _named(self, name: bytes) -> Iterator[tuple[int, int]]:
        if not self._sections_at or not self._sections or self._names >= self._sections:
            return
        _, at, size = self._section(self._names)
        names = self._read(at, min(size, MOST_NAMES_BYTES))
        for number in range(min(self._sections, MOST_HEADERS)):
            name_at, at, size = self._section(number)
            if names.startswith(name + b"\0", name_at):
                yield at, size

    def _loaded(self) -> Iterator[tuple[int, int, int, int]]:
        """(flags, place in the file, address, bytes in the file) of each segment that is loaded."""
        for number in range(min(self._segments, MOST_HEADERS)):
            raw = self._read(self._segments_at + number * self._segment_bytes, 56 if self._wide else 32)
            if self._wide:
                kind, flags, at, address, _, size = struct.unpack_from(f"{self._end}IIQQQQ", raw)
            else:
                kind, at, address, _, size, _, flags = struct.unpack_from(f"{self._end}IIIIIII", raw)
            if kind == _LOAD:
                yield flags, at, address, size

    def _data(self) -> Iterator[tuple[int, int]]:
        return ((at, size) for flags, at, _, size in self._loaded() if flags & _WRITABLE)

    def _block(self, at: int) -> GoBuild:
        head = self._read(at, _HEADER_BYTES)
        width, flags = head[14], head[15]
        if flags & 2:
            version, after = self._inline(at + _HEADER_BYTES)
            modules, _ = self._inline(after)
        else:
            end = ">" if flags & 1 else "<"
            form = {4: f"{end}I", 8: f"{end}Q"}.get(width)
            if form is None:
                raise ValueError(f"pointers of {width} bytes")
            version, modules = (self._pointed(struct.unpack_from(form, head, 16 + n * width)[0], form) for n in (0, 1))
        if not version:
            raise ValueError("no version of Go")
        return _parsed(version, modules)

    def _inline(self, at: int) -> tuple[bytes, int]:
        length, shift = 0, 0
        for number, byte in enumerate(self._read(at, 10), 1):  # encoding/binary, Uvarint: at most ten bytes
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return self._text(at + number, length), at + number + length
        raise ValueError("a length without an end")

    def _pointed(self, header: int, form: str) -> bytes:
        """The string of the header at this address: an address and a length."""
        width = struct.calcsize(form)
        both = self._read(self._place(header), 2 * width)
        address, length = (struct.unpack_from(form, both, n * width)[0] for n in (0, 1))
        return self._text(self._place(address), length) if length else b""

    def _place(self, address: int) -> int:
        for _, at, start, size in self._loaded():
            if start <= address < start + size:
                return at + address - start
        raise ValueError("an address outside of the program")

    def _text(self, at: int, length: int) -> bytes:
        if length > MOST_TEXT_BYTES:
            raise ValueError(f"a text of {length} bytes")
        text = self._read(at, length)
        if len(text) != length:
            raise ValueError("it ends too early")
        return text


def _parsed(version: bytes, text: bytes) -> GoBuild:
    said = version.decode("utf-8", "replace")
    if len(text) < 33 or text[-17] != ord("\n"):
        return GoBuild(said)
    modules: dict[str, str] = {}
    godebug: dict[str, str] = {}
    for line in text[16:-16].decode("utf-8", "replace").split("\n"):
        words = line.split("\t")
        if words[0] == "dep" and len(words) > 2:
            modules[words[1]] = words[2]
        elif words[0] == "build" and len(words) > 1 and words[1].startswith("DefaultGODEBUG="):
            godebug = parse_godebug(words[1].partition("=")[2].strip('"'))
    return GoBuild(said, modules, godebug)


def parse_godebug(text: str) -> dict[str, str]:
    """``name=value,name=value``; a later one counts."""
    return {name: value for name, _, value in (each.partition("=") for each in text.split(",")) if name}
