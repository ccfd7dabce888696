"""The rows of the throughput table: Kreps' of 2014, his published figures, and the corresponding loads here.

His figures are from "Benchmarking Apache Kafka: 2 Million Writes Per Second (On Three Cheap Machines)": 50 million
records of 100 bytes, three brokers of six cores, three more machines for the load, no fsync. The rows here use
`acks=all` and fsync unless their names say otherwise, and run all processes on one machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Row:
    """One row: the clients that run at the same time, and the topic's settings."""

    name: str
    what: str
    """The title for the table."""
    published: float | None
    """Records per second."""
    producers: int = 0
    consumers: int = 0
    send: Literal["one", "many"] = "many"
    decode: Literal["lists", "arrow", "each"] = "lists"
    replication_factor: int = 3
    acks: str = "all"
    rate: float | None = None
    """Records per second, if the row measures latency."""

    @property
    def reads_a_log(self) -> bool:
        """Whether the row reads records that were written before."""
        return self.consumers > 0 and self.producers == 0


PUBLISHED_LATENCY_MS = (2.0, 3.0, 14.0)
"""p50, p99, p99.9."""


def _rows() -> tuple[Row, ...]:
    rows: list[Row] = []
    ways: tuple[tuple[Literal["one", "many"], str], ...] = (("one", "send"), ("many", "send_many"))
    for way, call in ways:
        rows += [
            Row(f"unreplicated/{call}", f"1 producer, not replicated, acks=1, `{call}`", 821_557, 1, send=way,
                replication_factor=1, acks="1"),
            Row(f"leader/{call}", f"1 producer, 3x, acks=1, until followers have it, `{call}`", 786_980, 1, send=way,
                acks="1"),
            Row(f"all/{call}", f"1 producer, 3x, acks=all, `{call}`", 421_823, 1, send=way),
            Row(f"three-producers/{call}", f"3 producers, 3x, acks=all, `{call}`", 2_024_032, 3, send=way),
            Row(f"both/{call}", f"1 producer and 1 consumer at once, 3x, acks=all, `{call}`", 795_064, 1, 1, send=way),
        ]  # fmt: skip
    decodes: tuple[Literal["lists", "arrow"], ...] = ("lists", "arrow")
    for decode in decodes:
        rows += [
            Row(f"consumer/{decode}", f"1 consumer, {decode}", 940_521, consumers=1, decode=decode),
            Row(f"three-consumers/{decode}", f"3 consumers, {decode}", 2_615_968, consumers=3, decode=decode),
        ]
    rows.append(Row("consumer/each", "1 consumer, each record awaited", 940_521, consumers=1, decode="each"))
    rows.append(Row("latency", "1 record each ms, 3x, acks=all, until it is read", None, rate=1000.0))
    order = ("unreplicated", "leader", "all", "three-producers", "consumer", "three-consumers", "both", "latency")
    return tuple(sorted(rows, key=lambda row: order.index(row.name.partition("/")[0])))


ROWS = _rows()
