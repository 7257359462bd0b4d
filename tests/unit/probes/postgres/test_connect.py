"""What libpq is told to connect to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from probes.postgres.connect import _pair
from probes.postgres.libpq import pq


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_libpq_reads_every_value_as_it_was(value: str) -> None:
    told = pq.Conninfo.parse(" ".join(map(_pair, (("password", value), ("dbname", "after")))).encode())
    read = {option.keyword: option.val for option in told if option.val is not None}
    assert (read[b"password"].decode(), read[b"dbname"]) == (value, b"after")
