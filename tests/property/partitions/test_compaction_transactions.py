"""Compaction of a log with transactions compared with a model that keeps everything (S13).

Whatever is written, ended, sealed and compacted, in any order: a `read_committed` reader ends with the same table, by
the owner's state and by the state of a reader that has only the compacted log.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog.model import Offset
from raftlog.records.batch import ControlKind, parse_header
from raftlog.records.batch_filter import hole
from raftlog.transactions import TransactionKey
from tests.support.partitions.compaction import seal
from tests.support.partitions.storage import read_batches, settle
from tests.support.partitions.transaction_logs import key
from tests.support.partitions.transactional_log import Transactional

KEYS = [b"a", b"b", b"c"]
TRANSACTIONS = [key(1, 0), key(1, 1), key(2, 0)]

step = (
    st.tuples(st.just("plain"), st.sampled_from(KEYS), st.booleans())
    | st.tuples(
        st.just("write"), st.sampled_from(TRANSACTIONS), st.lists(st.sampled_from(KEYS), min_size=1, max_size=2)
    )
    | st.tuples(st.just("end"), st.sampled_from(TRANSACTIONS), st.sampled_from(["abort", "commit", "in part"]))
    | st.tuples(st.just("seal"), st.none(), st.none())
    | st.tuples(st.just("compact"), st.none(), st.none())
)


class Twin:
    """Every record in order, with its outcome."""

    def __init__(self) -> None:
        self.records: list[tuple[int, TransactionKey | None, bytes, bytes | None]] = []
        """(base offset of its batch, transaction, key, value)."""
        self.first_open: dict[TransactionKey, int] = {}
        self.last_end: dict[TransactionKey, tuple[int, int]] = {}
        self.gone: set[int] = set()

    def committed(self, end: int) -> list[tuple[bytes | None, bytes | None]]:
        stable = min([end, *self.first_open.values()])
        return [(name, value) for base, _, name, value in self.records if base < stable and base not in self.gone]


def table(records: list[tuple[bytes | None, bytes | None]]) -> dict[bytes | None, bytes]:
    found: dict[bytes | None, bytes] = {}
    for name, value in records:
        found.pop(name, None)
        if value is not None:
            found[name] = value
    return found


def play(log: Transactional, twin: Twin, number: int, what: str, one: object, other: object) -> None:
    base = int(log.log.log_end_offset)
    if what == "plain":
        value = None if other else b"p%d" % number
        log.plain(one, value)  # type: ignore[arg-type]
        twin.records.append((base, None, one, value))  # type: ignore[arg-type]
    elif what == "write":
        log.write(one, other, b"t%d" % number, sequence=number)  # type: ignore[arg-type]
        twin.records += [(base, one, name, b"t%d" % number) for name in other]  # type: ignore[misc, attr-defined]
        twin.first_open.setdefault(one, base)  # type: ignore[arg-type]
    elif what == "end" and one in twin.first_open:
        first = twin.first_open.pop(one)
        of = sorted({place for place, whose, _, _ in twin.records if whose == one and place >= first})
        meant = {"abort": 0, "commit": len(of), "in part": len(of) // 2}[str(other)]
        named = of[meant] if meant < len(of) else base
        twin.gone.update(of[meant:])
        if other == "abort":
            log.end(ControlKind.ABORT, one)
        else:
            log.end(ControlKind.COMMIT, one, named)
    elif what == "seal":
        seal(log.log)
    elif what == "compact":
        log.compact()


@settings(max_examples=60)
@given(st.lists(step, min_size=5, max_size=40))
def test_a_compacted_log_with_transactions_is_equivalent_to_the_original(
    steps: list[tuple[str, object, object]],
) -> None:
    log, twin = Transactional(), Twin()
    for number, (what, one, other) in enumerate([*steps, ("seal", None, None), ("compact", None, None)]):
        play(log, twin, number, what, one, other)
    for _ in range(2):
        expected = table(twin.committed(int(log.log.stable_end_offset)))
        assert table(log.committed()) == expected
        again = log.reopened()
        assert table(log.committed(again)) == expected
        assert list(again.transactions.open_keys()) == list(log.states.transactions.open_keys())
        log.plain(b"once more", b"x")
        twin.records.append((int(log.log.log_end_offset) - 1, None, b"once more", b"x"))
        seal(log.log)
        log.compact()


def copied(log: Transactional, end: int = 2**62) -> list[bytes]:
    """Its batches, as a follower has them."""
    return [data for data in read_batches(log.log, Offset(0)) if parse_header(data).base_offset < end]


def come_back(had: list[bytes], leader: Transactional) -> Transactional:
    """A replica that had these batches when it went offline, and has copied the rest of its leader's since."""
    replica = Transactional()
    for data in had:
        replica.append(data)
    for data in copied(leader):
        header, end = parse_header(data), replica.log.log_end_offset
        if header.end_offset <= end:
            continue
        # If it ends within a hole, it gets the rest of it.
        rest = header.base_offset < end
        replica.append(bytes(hole(end, header.end_offset, 0, header.max_timestamp)) if rest else data)
    assert replica.log.log_end_offset == leader.log.log_end_offset
    settle(replica.log)
    return replica


@settings(max_examples=80)
@given(st.lists(step, min_size=5, max_size=40), st.integers(0, 30))
def test_a_replica_that_missed_a_marker_leads_and_is_equivalent_s13(
    steps: list[tuple[str, object, object]], away_from: int
) -> None:
    """It considers a transaction open that ended long ago, and aborts it: all its committed records are superseded
    behind it, as long as tombstones are kept."""
    log, twin, had = Transactional(), Twin(), list[bytes]()
    for number, (what, one, other) in enumerate(steps):
        play(log, twin, number, what, one, other)
        if number == away_from:
            settle(log.log)
            had = copied(log)
    for number, one in enumerate(list(twin.first_open), len(steps)):
        play(log, twin, number, "end", one, "abort")
    for number in range(3):
        log.plain(b"once more", b"%d" % number)
        twin.records.append((int(log.log.log_end_offset) - 1, None, b"once more", b"%d" % number))
        seal(log.log)
        log.compact()
    replica = come_back(had, log)
    for one in list(replica.states.transactions.open_keys()):
        replica.end(ControlKind.ABORT, one)
    settle(replica.log)
    expected = table(twin.committed(int(log.log.stable_end_offset)))
    assert table(replica.committed()) == expected
    for _ in range(2):
        seal(replica.log)
        replica.compact()
        assert table(replica.committed()) == expected
        replica.plain(b"once more", b"2")
