"""Records of every kind for Hypothesis, and the choice of an implementation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from raftlog.records import batch as record_batch
from raftlog.records.batch import Codec, encode
from tests.golden.record_batch_reference import NaiveRecord

NOW = 1_700_000_000_000
TWINS = ("plain", "arrow")

Headers = list[tuple[str, bytes | None]]


@contextlib.contextmanager
def twin(name: str) -> Iterator[None]:
    """Everything inside uses this implementation, whatever its size."""
    chosen = record_batch.ARROW_FROM
    record_batch.ARROW_FROM = 1 << 31 if name == "plain" else 0
    try:
        yield
    finally:
        record_batch.ARROW_FROM = chosen


@dataclass
class Columns:
    """The arguments of `encode`."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    timestamps: list[int] | None
    headers: list[Headers | None] | None

    def encode(self, codec: Codec = Codec.NONE, **fields: Any) -> bytes:
        return encode(
            self.values,
            keys=self.keys,
            timestamps_ms=self.timestamps,
            headers=self.headers,
            codec=codec,
            base_timestamp_ms=NOW,
            **fields,
        )

    def naive(self) -> list[NaiveRecord]:
        return [
            NaiveRecord(
                index,
                self.timestamps[index] if self.timestamps else NOW,
                self.keys[index] if self.keys else None,
                value,
                list(self.headers[index] or []) if self.headers else [],
            )
            for index, value in enumerate(self.values)
        ]


def entries(count: int) -> st.SearchStrategy[list[bytes | None]]:
    some = st.one_of(st.none(), st.binary(max_size=20), st.just(b"x" * 300))
    return st.one_of(
        st.lists(some, min_size=count, max_size=count),
        st.lists(st.binary(min_size=4, max_size=4), min_size=count, max_size=count),
        st.just([None] * count),
    )


TIMES = st.one_of(st.integers(NOW - 100, NOW + 100), st.integers(-1, 2**63 - 2))
HEADERS: st.SearchStrategy[Headers] = st.lists(
    st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3
)


@st.composite
def columns(draw: st.DrawFn, max_count: int = 40) -> Columns:
    count = draw(st.integers(1, max_count))
    return Columns(
        draw(entries(count)),
        draw(st.none() | entries(count)),
        draw(st.none() | st.lists(TIMES, min_size=count, max_size=count)),
        draw(st.none() | st.lists(st.none() | HEADERS, min_size=count, max_size=count)),
    )
