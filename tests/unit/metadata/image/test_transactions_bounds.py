"""Large transactions: parts of large commits, bounds, deleted topics, copies in pieces."""

from __future__ import annotations

import contextlib
import zlib
from itertools import pairwise

import pytest

from metadata.commands.cluster import CreateTopic, DeleteTopic
from metadata.commands.envelope import ENVELOPE_VERSION, Envelope, decode, encode
from metadata.commands.transactions import (
    ChangeTransactions,
    CommitStaged,
    Expire,
    ExpiredParts,
    Initialize,
    OpenBlock,
    Piece,
    StagePart,
    digest_of,
    encode_piece,
)
from metadata.image import transaction_commit
from metadata.image import transactions as transaction_image
from metadata.image.apply import apply_in_steps
from metadata.image.image import ClusterImage, run
from metadata.image.invariants import check
from metadata.records.transactions import Ranges, has_id, with_ids
from metadata.snapshot.encoder import SnapshotEncoder, decode_snapshot_in_steps, encode_snapshot
from metadata.view import ClusterView
from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId
from raftlog.transactions import Outcome, TransactionKey
from raftlog.wire import PositionMove, TransactionOutput
from tests.support.metadata.at_once import apply, decode_snapshot, diff
from tests.support.metadata.cluster import TOPIC
from tests.support.metadata.groups import NOW_MS
from tests.support.metadata.transactions import (
    ABORTED,
    UNDECIDED,
    TransactionCluster,
    commit,
    committed,
    moves,
    output,
    tp,
)

ID = b"commit-number-01"

# --- Large commits ---------------------------------------------------------------------------------------------------


def piece_of(*outputs: TransactionOutput) -> bytes:
    return encode_piece(Piece(outputs, ()))


def staged(*pieces: bytes, digest: bytes | None = None, positions: tuple[PositionMove, ...] = ()) -> CommitStaged:
    return CommitStaged(ID, len(pieces), digest_of(pieces) if digest is None else digest, positions, "", NOW_MS)


def test_parts_do_nothing_until_one_command_names_them_all() -> None:
    cluster = TransactionCluster()
    one, other, *_ = cluster.open_block()
    # The first transaction arrives in two pieces.
    first, second = piece_of(output(one, {0: 5})), piece_of(output(one, {1: 6}), output(other, {0: 7}))
    cluster.do_change(StagePart(ID, 1, second))
    cluster.do_change(StagePart(ID, 1, second))  # once more
    assert cluster.verdict(other, 0) == UNDECIDED
    cluster.do_change(StagePart(ID, 0, first))
    cluster.do_change(staged(first, second, positions=(PositionMove("query", -1, 0),)))
    assert [cluster.verdict(one, 0), cluster.verdict(one, 1)] == [committed(5), committed(6)]
    assert cluster.verdict(other, 0) == committed(7)
    assert cluster.position("query") == 0
    assert cluster.view.transactions.staged() == [] and cluster.image.transactions.staged_bytes == 0


def test_a_part_is_never_changed() -> None:
    cluster = TransactionCluster()
    one, *_ = cluster.open_block()
    cluster.do_change(StagePart(ID, 0, piece_of(output(one, {0: 5}))))
    cluster.refuse(StagePart(ID, 0, piece_of(output(one, {0: 6}))), "invalid_request", changes_nothing=True)
    cluster.refuse(StagePart(ID, 1, b"\x00rubbish"), "invalid_request", changes_nothing=True)


def test_incomplete_or_foreign_parts_commit_nothing() -> None:
    cluster = TransactionCluster()
    one, *_ = cluster.open_block()
    first, second = piece_of(output(one, {0: 5})), piece_of(output(one, {1: 6}))
    cluster.do_change(StagePart(ID, 1, second))
    cluster.refuse(staged(first, second), "overloaded", changes_nothing=True)
    cluster.do_change(StagePart(ID, 0, first))
    cluster.refuse(staged(first), "overloaded", changes_nothing=True)
    cluster.refuse(staged(second, first), "invalid_request")
    assert cluster.verdict(one, 0) == UNDECIDED, "a malformed request aborts nothing"
    assert cluster.view.transactions.staged() == []


def test_a_partition_named_in_two_parts_is_malformed_s11() -> None:
    cluster = TransactionCluster()
    one, *_ = cluster.open_block()
    pieces = [piece_of(output(one, {0: 5})), piece_of(output(one, {0: 6}))]
    for number, piece in enumerate(pieces):
        cluster.do_change(StagePart(ID, number, piece))
    cluster.refuse(staged(*pieces), "invalid_request")
    assert cluster.verdict(one, 0) == UNDECIDED


def test_members_of_one_group_in_two_parts_are_one_or_malformed() -> None:
    cluster = TransactionCluster()
    one, *_ = cluster.open_block()
    pieces = [encode_piece(Piece((output(one, {}),), (moves("g", {0: (-1, 4)}),))),
              encode_piece(Piece((), (moves("g", {1: (-1, 5)}),)))]  # fmt: skip
    for number, piece in enumerate(pieces):
        cluster.do_change(StagePart(ID, number, piece))
    cluster.do_change(staged(*pieces))
    assert cluster.committed("g") == {0: 4, 1: 5}
    mine = moves("g", {2: (-1, 1)})
    stranger = type(mine)("g", "m", 3, 4, mine.moves)
    cluster.refuse(commit(groups=(mine, stranger)), "invalid_request", changes_nothing=True)


def test_abandoned_parts_expire_unless_more_came() -> None:
    cluster = TransactionCluster()
    piece = piece_of()
    cluster.do_change(StagePart(ID, 0, piece))
    cluster.do_change(StagePart(ID, 1, piece))
    cluster.do_change(Expire(cluster.term, (), (), (ExpiredParts(ID, 1), ExpiredParts(b"another-commit-1", 1))))
    assert cluster.view.transactions.staged() == [(ID, 2)]
    cluster.do_change(Expire(cluster.term, (), (), (ExpiredParts(ID, 2),)))
    assert cluster.view.transactions.staged() == []


def test_a_large_commit_is_applied_in_steps_and_seen_as_one_s13(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_commit, "OFFSETS_PER_STEP", 10)
    monkeypatch.setattr(transaction_commit, "ENDS_PER_EVENT", 7)
    cluster = TransactionCluster()
    block = cluster.open_block(count=50)
    asked = commit(*(output(one, {0: 5, 1: 6, 2: 7, 3: 8}) for one in block), positions={"query": (-1, 0)})
    image = cluster.image
    steps = apply_in_steps(image, image.index + 1, 1, decode(encode(ChangeTransactions((asked,)))))
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration:
            break
        count += 1
    assert count > 20
    check(image)
    events = image.take_events()
    assert len(events) > 200 / 7
    for event in events:
        cluster.view.on_events(cluster.view.index, [event])
        for one in block:
            told = cluster.view.transactions.verdict(one, tp(3))
            assert told.outcome is not Outcome.ABORTED, "taken over half, and called aborted"
    assert all(cluster.verdict(one, 3) == committed(8) for one in block)


# --- Bounds ----------------------------------------------------------------------------------------------------------


def test_a_refusal_for_lack_of_room_changes_nothing_and_can_be_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = TransactionCluster()
    one, other, third, *_ = cluster.open_block()
    monkeypatch.setattr(transaction_commit, "MAX_ENDS", 3)
    cluster.do_change(commit(output(one, {0: 5, 1: 6})))
    asked = commit(output(other, {0: 7, 1: 8}), positions={"query": (-1, 0)})
    cluster.refuse(asked, "overloaded", changes_nothing=True)
    cluster.mark(0, one)
    cluster.do_change(asked)
    monkeypatch.setattr(transaction_commit, "MAX_POSITIONS", 1)
    cluster.refuse(commit(output(third, {}), positions={"more": (-1, 0)}), "invalid_request", changes_nothing=True)
    cluster.do_change(commit(output(third, {}), positions={"query": (0, 1)}))


@pytest.mark.parametrize(("name", "most"), [("MAX_ENDS_PER_COMMIT", 1), ("MAX_MOVES_PER_COMMIT", 1)])
def test_a_commit_that_is_too_large_changes_nothing(monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
    cluster = TransactionCluster()
    one, *_ = cluster.open_block()
    monkeypatch.setattr(transaction_commit, name, most)
    asked = commit(output(one, {0: 5, 1: 6}), groups=(moves("readers", {0: (-1, 1), 1: (-1, 1)}),))
    cluster.refuse(asked, "transaction_too_large", changes_nothing=True)


def test_named_producers_of_a_commit_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = TransactionCluster()
    monkeypatch.setattr(transaction_commit, "MAX_NAMED_PER_COMMIT", 1)
    asked = commit(output(cluster.initialize("a"), {}), output(cluster.initialize("b"), {}))
    cluster.refuse(asked, "transaction_too_large", changes_nothing=True)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("MAX_PRODUCERS", Initialize("another", 1_000, NOW_MS)),
        ("MAX_BLOCKS", OpenBlock("another", 1, 1_000)),
        ("MAX_IDS_IN_BLOCKS", OpenBlock("another", 1, 1_000)),
        ("MAX_RANGES", OpenBlock("another", 1, 1_000)),
        ("MAX_STAGED_COMMITS", StagePart(b"another-commit-1", 0, piece_of())),
        ("MAX_STAGED_BYTES", StagePart(b"another-commit-1", 0, piece_of())),
    ],
)
def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch, name: str, change: object) -> None:
    cluster = TransactionCluster()
    cluster.initialize()
    one, *_ = cluster.open_block(count=1)
    cluster.abort(one)
    cluster.do_change(StagePart(ID, 0, piece_of()))
    monkeypatch.setattr(transaction_image, name, 1)
    cluster.refuse(change, "overloaded", changes_nothing=True)  # type: ignore[arg-type]


# --- Topics, copies --------------------------------------------------------------------------------------------------


def test_a_deleted_topic_is_removed_from_commits_that_wait_for_markers() -> None:
    cluster = TransactionCluster()
    one, other, *_ = cluster.open_block()
    cluster.do_change(commit(output(one, {0: 5, 3: 6}), groups=(moves("readers", {1: (-1, 10)}),)))
    cluster.do(DeleteTopic(TOPIC))
    transactions = cluster.view.transactions
    assert transactions.unmarked_count(one) == transactions.ends_count == 0
    assert dict(cluster.image.groups.offsets_of("readers")) == {}
    cluster.refuse(commit(output(other, {0: 5})), "unknown_partition")
    cluster.do(CreateTopic("orders", TOPIC, ((BrokerId(0),),) * 4, ()))
    assert cluster.verdict(one, 0) == ABORTED


def test_the_removal_is_the_same_on_every_node_s7() -> None:
    """A node that was restored from a snapshot has ends in another order than one that saw the commits."""
    cluster = TransactionCluster()
    one, other, *_ = cluster.open_block()
    cluster.do_change(commit(output(other, {0: 5})))
    cluster.do_change(commit(output(one, {0: 6})))
    copy = decode_snapshot(encode_snapshot(cluster.image))
    entry = (cluster.image.index + 1, 1, Envelope(ENVELOPE_VERSION, None, None, DeleteTopic(TOPIC)))
    assert apply(copy, *entry) == apply(cluster.image, *entry)


def test_a_copy_that_missed_many_entries_catches_up_without_a_wrong_answer_s13() -> None:
    cluster = TransactionCluster()
    named = cluster.initialize()
    block = cluster.open_block("batch", 4)
    behind = decode_snapshot(encode_snapshot(cluster.image))
    view = ClusterView()
    view.on_events(behind.index, diff(ClusterImage(), behind))
    cluster.do_change(commit(output(named, {0: 5}), output(block[0], {1: 6}), positions={"q": (-1, 3)}))
    cluster.mark(1, block[0])
    cluster.abort(block[1])
    new_block = cluster.open_block("batch-2", 2)
    cluster.initialize("other")
    cluster.do_change(StagePart(ID, 0, piece_of()))
    keys: list[TransactionKey] = [named, *block, *new_block]
    for event in diff(behind, cluster.image):
        view.on_events(view.index, [event])
        for one in keys:
            told = view.transactions.verdict(one, tp(0))
            assert told in (UNDECIDED, cluster.image.transactions.verdict(one, tp(0))), (event, one)
    assert view.transactions.positions() == [("q", 3)] and view.transactions.staged() == [(ID, 1)]
    assert diff(cluster.image, decode_snapshot(encode_snapshot(cluster.image))) == []
    back = diff(cluster.image, behind)
    view.on_events(view.index, back)
    assert [view.transactions.verdict(one, tp(1)) for one in keys] == [
        behind.transactions.verdict(one, tp(1)) for one in keys
    ]


def test_a_snapshot_contains_nothing_that_comes_after_it() -> None:
    cluster = TransactionCluster()
    one, other, *_ = cluster.open_block()
    cluster.do_change(commit(output(one, {0: 5})))
    whole = encode_snapshot(cluster.image)
    encoder = SnapshotEncoder(cluster.image)
    cluster.do_change(commit(output(other, {0: 7}), positions={"q": (-1, 3)}))
    cluster.mark(0, one)
    while True:
        packed = encoder.step()
        if packed is not None:
            break
    assert packed == whole
    assert run(decode_snapshot_in_steps(packed)).transactions.unmarked(tp(0)) == [one]


def test_damaged_snapshots_are_refused_completely() -> None:
    cluster = TransactionCluster()
    one, *_ = cluster.open_block("batch")
    cluster.initialize()
    cluster.do_change(commit(output(one, {0: 5}), positions={"q": (-1, 3)}))
    packed = encode_snapshot(cluster.image)
    head = 12
    for bit in range(8 * head):
        damaged = bytearray(packed)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RemoteProtocolError):
            decode_snapshot(bytes(damaged))
    # With a matching checksum: invalid transactions are reported as such.
    for position in range(packed.index(b"batch"), len(packed)):
        damaged = bytearray(packed)
        damaged[position] ^= 0x55
        damaged[8:head] = zlib.crc32(damaged[head:]).to_bytes(4, "big")
        with contextlib.suppress(RemoteProtocolError):
            decode_snapshot(bytes(damaged))


@pytest.mark.parametrize("few", [True, False])
def test_ids_in_ranges_are_a_set(few: bool) -> None:
    known: set[int] = set()
    ranges: Ranges = ()
    for some in ([5], [7], [6], [1, 2], [9, 10, 12], [11, 8], [2, 5, 40], [3, 4], list(range(20, 39)), [39]):
        chosen = some if few else [*some, *some, *some, *some, *some, *some, *some, *some, *some]
        ranges = with_ids(ranges, chosen)
        known.update(some)
        assert [one for one in range(50) if has_id(ranges, one)] == sorted(known)
        assert all(before[1] < after[0] for before, after in pairwise(ranges))
    assert ranges == ((1, 13), (20, 41))
