"""A consumer's stream with a fetch session, over a broker of `tests/support/partitions/replication_cluster.py`."""

from __future__ import annotations

from dataclasses import dataclass, field

from partitions.fetch.session import FetchSession
from raftlog.ports import Part
from raftlog.records.batch import RecordBatch, split_batches
from raftlog.wire import FetchedSlot, SessionFetchRequest, SlotToFetch
from tests.support.partitions.replication_cluster import TOPIC, ReplicationCluster, bytes_of


@dataclass
class Polled:
    """An answer, once it has arrived."""

    slots: list[FetchedSlot] | None = None
    values: int = 0
    """The number of records in it."""
    ends: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Slot → base and end offset of each batch."""

    @property
    def by_slot(self) -> dict[int, FetchedSlot]:
        assert self.slots is not None
        return {slot.slot: slot for slot in self.slots}

    @property
    def over(self) -> dict[int, str]:
        """Slot → its error, empty for batches; slots that continue to wait are left out."""
        return {number: slot.error for number, slot in self.by_slot.items() if slot.error or slot.length}


class SessionReader:
    """Slots are numbered by the test: `{7: (partition, offset)}`."""

    def __init__(self, cluster: ReplicationCluster, number: int = 0, *, isolation: int = 0) -> None:
        self.cluster = cluster
        self.sessions = cluster.members[number].manager.fetches.sessions
        self.isolation = isolation
        self.session: FetchSession | None = None
        self.epoch = -1
        self._begun = 0

    def poll(
        self,
        added: dict[int, tuple[int, int]] | None = None,
        *,
        begins: bool | None = None,
        session: int | None = None,
        dropped: tuple[int, ...] = (),
        wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
    ) -> Polled:
        """Begins a session if there is none. Raises the refusal of the request."""
        begins = self.session is None if begins is None else begins
        self._begun += begins
        slots = [
            SlotToFetch(number, TOPIC, partition, offset, 1 << 20, self.epoch)
            for number, (partition, offset) in (added or {}).items()
        ]
        number = self._begun if session is None else session
        request = SessionFetchRequest(
            0, number, begins, wait_ms, min_bytes, max_bytes, slots, list(dropped), self.isolation
        )
        polled = Polled()

        def done(answers: list[FetchedSlot], parts: list[Part]) -> None:
            assert polled.slots is None, "once"
            polled.slots = answers
            body = b"".join(bytes_of(part) for part in parts)
            assert len(body) == sum(answer.length for answer in answers)
            start = 0
            for answer in answers:
                piece = body[start : start + answer.length]
                start += answer.length
                batches = [RecordBatch(batch) for batch in split_batches(piece)]
                polled.values += sum(len(batch.values()) for batch in batches)
                polled.ends[answer.slot] = [(b.header.base_offset, b.header.end_offset) for b in batches]

        self.session = self.sessions.fetch(self.session, request, done)
        return polled

    def close(self) -> None:
        """Close the stream."""
        self.sessions.close_session(self.session)
