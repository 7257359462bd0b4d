"""Programs as the linker of Go leaves them, as far as their build information goes: both formats, widths and byte orders."""

from __future__ import annotations

import struct

from probes.app.go_build import MAGIC

SENTINEL = b"0w\xaf\x0c\x92t\x08\x02A\xe1\xc1\x07\xe6\xd6\x18\xe6"
LAST = b"\xf92C1\x86\x18 r\x00\x82B\x10A\x16\xd8\xf2"
BASE = 0x400000


def modules(*lines: str) -> bytes:
    """The modules' text between its sentinels."""
    return SENTINEL + "".join(f"{line}\n" for line in lines).encode() + LAST


def varint(number: int) -> bytes:
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def program(
    version: bytes = b"go1.26.8", text: bytes = b"", *, inline: bool = True, wide: bool = True, little: bool = True,
    named: bool = True, before: int = 0,
) -> bytes:  # fmt: skip
    """An ELF file: a header, one segment that is loaded, the block in it, and, where ``named``, a section that says where that is.

    ``before``: bytes of other data that come before the block in its segment.
    """
    end, width = "<" if little else ">", 8 if wide else 4
    head_bytes, segment_bytes, section_bytes = (64, 56, 64) if wide else (52, 32, 40)
    data_at = 512
    at = data_at + before
    if inline:
        block = MAGIC + bytes([width, 2]) + bytes(16) + varint(len(version)) + version + varint(len(text)) + text
    else:
        word = "Q" if wide else "I"
        headers, strings = at + 32, at + 32 + 4 * width
        block = MAGIC + bytes([width, 0 if little else 1])
        block += struct.pack(f"{end}2{word}", BASE + headers, BASE + headers + 2 * width).ljust(16, b"\0")
        first = struct.pack(f"{end}2{word}", BASE + strings, len(version))
        second = struct.pack(f"{end}2{word}", BASE + strings + len(version), len(text))
        block += first + second + version + text
    data = b"\x7f" * before + block
    names = b"\0.go.buildinfo\0.shstrtab\0"
    names_at = data_at + len(data)
    sections_at = names_at + len(names)
    sections = 3 if named else 0
    ident = b"\x7fELF" + bytes([2 if wide else 1, 1 if little else 2, 1]).ljust(12, b"\0")
    form = f"{end}HHI{'QQQ' if wide else 'III'}IHHHHHH"
    head = ident + struct.pack(
        form, 2, 62, 1, 0, head_bytes, sections_at if named else 0, 0, head_bytes, segment_bytes, 1, section_bytes, sections, 2 * named
    )  # fmt: skip
    if wide:
        segment = struct.pack(f"{end}IIQQQQQQ", 1, 6, 0, BASE, BASE, names_at, names_at, 4096)
    else:
        segment = struct.pack(f"{end}IIIIIIII", 1, 0, BASE, BASE, names_at, names_at, 6, 4096)
    raw = (head + segment).ljust(data_at, b"\0") + data + names
    for name, where, size in ((0, 0, 0), (1, at, len(block)), (15, names_at, len(names))) if named else ():
        if wide:
            raw += struct.pack(f"{end}IIQQQQIIQQ", name, 1, 3, BASE + where, where, size, 0, 0, 16, 0)
        else:
            raw += struct.pack(f"{end}IIIIIIIIII", name, 1, 3, BASE + where, where, size, 0, 0, 16, 0)
    return raw
