"""HTML that is escaped by construction: what is not :class:`Markup` is text, whoever wrote it.

Names of processes, queues and databases, and what servers answer, come from hostile surroundings.  Characters that cannot be seen, or
that turn the reading order round, become U+FFFD: a command to be copied must be what it looks like.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Any

#: What is longer is no sentence; the rest stands in /report.txt.
MOST_TEXT = 2000
#: Without children; the slash is what closes those of SVG.
_VOID = frozenset({"meta", "link", "line", "path", "rect", "circle"})


class Markup(str):
    """A text that is HTML already."""

    __slots__ = ()


def visible(text: str) -> str:
    """The text with nothing in it that a reader could not see."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def cut(value: Any, most: int) -> str:
    """A text of at most so many characters: what stands in full elsewhere."""
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def escaped(value: Any, most: int | None = MOST_TEXT) -> Markup:
    """Any value as text, at most so many characters; ``None``: all of them."""
    if isinstance(value, Markup):
        return value
    text = value if isinstance(value, str) else str(value)
    if text.isalnum() and len(text) <= (most or len(text)):
        return Markup(text)  # most attributes
    text = visible(text if most is None else cut(text, most))
    return Markup(escape(text, quote=True))


def h(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """An element.  ``cls`` is class; ``None`` and ``False`` leave an attribute or a child out; ``True`` is an attribute alone."""
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        word = "class" if key == "cls" else key.rstrip("_").replace("_", "-")
        words.append(word if value is True else f'{word}="{escaped(value, None)}"')
    head = " ".join(words)
    return Markup(f"<{head}/>" if name in _VOID else f"<{head}>{joined(children)}</{name}>")


def joined(children: Iterable[Any]) -> Markup:
    """Children one after the other: texts, elements, and lists of them."""
    parts = []
    for child in children:
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, str):
            parts.append(escaped(child))
        elif child is not None and child is not False:
            parts.append(joined(child) if isinstance(child, Iterable) else escaped(child))
    return Markup("".join(parts))
