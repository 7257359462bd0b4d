"""The lines of a metrics page that are looked for, read without trusting the page.

The parser is prometheus_client's.  It takes half a second of CPU for a page of 1 MB, stops at the first line that it
does not like and is quadratic in the labels of a line.  So only the lines that begin with a known name are given
to it, one by one, none longer than ``MOST_LINE`` and not more than ``MOST_TEXT`` characters in all: 15 ms for a usual page
of 1 MB, 0.15 s for the worst one.  A line that is none, and a number that is negative, infinite or NaN, are left out.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping

MOST_LINE = 2000
MOST_TEXT = 100_000
#: Nothing counts further, and a page that says so is not believed.
MOST_VALUE = 1e15

_NAME = re.compile(r"^[a-zA-Z_:][a-zA-Z0-9_:]*(?=[{ \t])", re.MULTILINE)


def samples(page: str, names: Container[str]) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """The samples of these names: name, labels, value.

    Raises ValueError when the page holds more of them than are read.
    """
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - rules import this module

    left = MOST_TEXT
    for match in _NAME.finditer(page):
        if match[0] not in names:
            continue
        end = page.find("\n", match.end())
        line = page[match.start() : end if end >= 0 else len(page)]
        if len(line) > MOST_LINE:
            continue
        left -= len(line)
        if left < 0:
            raise ValueError(f"the page holds more than {MOST_TEXT} characters of the metrics that are looked for")
        try:
            (family,) = text_string_to_metric_families(line)
            (sample,) = family.samples
            value = float(sample.value)
        except (ValueError, IndexError, OverflowError):
            continue
        if 0.0 <= value <= MOST_VALUE:
            yield sample.name, sample.labels, value
