"""Whatever producers, leaders and controllers request in any order: a commit is all or nothing, and no end is reversed.

The model is as simple as possible: the outcome of each key ever granted, and the offsets and positions. It knows no
epochs, blocks or rows, forgets nothing, and determines which commits must be accepted (S13, S8).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.commands.cluster import CreateTopic, DeleteTopic
from metadata.commands.envelope import Command, decode, encode
from metadata.commands.results import TransactionsChanged
from metadata.commands.transactions import (
    Abort,
    AbortOverdue,
    ChangeTransactions,
    Commit,
    CommitStaged,
    Expire,
    ExpiredBlock,
    ExpiredProducer,
    Initialize,
    Marked,
    OpenBlock,
    Piece,
    RetireBlock,
    StagePart,
    TransactionChange,
    digest_of,
    encode_piece,
)
from metadata.image.image import ClusterImage
from metadata.image.invariants import check
from metadata.records.events import MetadataEvent
from metadata.records.transactions import ATTEMPTS_KEPT
from metadata.snapshot.encoder import encode_snapshot
from metadata.view import ClusterView
from raftlog.model import BrokerId
from raftlog.transactions import Outcome, TransactionKey
from raftlog.wire import GroupMoves
from tests.support.metadata.at_once import apply, decode_snapshot, diff
from tests.support.metadata.cluster import TOPIC
from tests.support.metadata.groups import NOW_MS
from tests.support.metadata.transactions import (
    ABORTED,
    UNDECIDED,
    TransactionCluster,
    commit,
    committed,
    key,
    moves,
    output,
    tp,
)

PARTITIONS = 3
NAMES = ("app", "other")
BLOCKS = ("batch-1", "batch-2", "")
POSITIONS = ("here", "there")
UNCHANGED = ("invalid_request", "overloaded", "transaction_too_large")
"""Refusals that are independent of the state."""


class Twin:
    """The permanent truth."""

    def __init__(self) -> None:
        self.became: dict[TransactionKey, Outcome] = {}
        self.ends: dict[TransactionKey, dict[int, int]] = {}
        """Ends of committed transactions, without those that are marked, or whose partition is gone."""
        self.commits: dict[TransactionKey, Commit] = {}
        self.offsets: dict[int, int] = {}
        self.positions: dict[str, int] = {}

    def begin(self, keys: Sequence[TransactionKey]) -> None:
        for one in keys:
            self.became.setdefault(one, Outcome.UNDECIDED)

    def takes(self, asked: Commit) -> bool:
        """Whether it must be accepted, and changes something."""
        return (
            all(self.became.get(one.key) is Outcome.UNDECIDED for one in asked.outputs)
            and all(self.positions.get(one.name, -1) == one.current for one in asked.positions)
            and all(self.offsets.get(m.partition, -1) == m.start for group in asked.groups for m in group.moves)
        )

    def take(self, asked: Commit) -> None:
        for one in asked.outputs:
            self.became[one.key] = Outcome.COMMITTED
            self.commits[one.key] = asked
            named = (pair for topic in one.topics for pair in zip(topic.partitions, topic.end_offsets, strict=True))
            self.ends[one.key] = dict(named)
        self.offsets.update({move.partition: move.end for group in asked.groups for move in group.moves})
        self.positions.update({one.name: one.new for one in asked.positions})

    def abort(self, keys: Sequence[TransactionKey]) -> None:
        for one in keys:
            if self.became.get(one) is Outcome.UNDECIDED:
                self.became[one] = Outcome.ABORTED

    def abort_id(self, producer_ids: range) -> None:
        self.abort([one for one in self.became if one.producer_id in producer_ids])

    def forget(self, number: int, keys: Sequence[TransactionKey]) -> None:
        for one in keys:
            self.ends.get(one, {}).pop(number, None)


class Mess:
    """Drivers, zombies, leaders and controllers whose knowledge is out of date."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = TransactionCluster(PARTITIONS)
        self.twin = Twin()
        self.keys: list[TransactionKey] = []
        self.asked: list[Commit] = []
        self.attempts: dict[str, list[bytes]] = {}
        """Name → its initializations, the last one first; empty: one without a number."""
        self.log: list[tuple[int, int, bytes]] = []
        self.told: list[list[MetadataEvent]] = []
        """The changes of each of these entries."""
        self.slow_view = ClusterView()
        """A view that applies every entry one event at a time."""
        self.slow_view.on_events(self.cluster.image.index, diff(ClusterImage(), self.cluster.image))
        self.numbers = 0

    # --- Requests -----------------------------------------------------------------------------------------------------

    def a_commit(self) -> Commit:
        if self.asked and self.random.random() < 0.3:
            return self.random.choice(self.asked)  # a retry, perhaps a late one
        chosen = self.random.sample(self.keys[-8:], min(len(self.keys), self.random.choice((1, 1, 1, 2, 3))))
        keys = list({one.producer_id: one for one in chosen}.values())
        self.numbers += 1
        outputs = [
            output(one, {number: self.numbers for number in range(PARTITIONS) if self.random.random() < 0.6})
            for one in keys
        ]
        positions = {}
        if self.random.random() < 0.4:
            name = self.random.choice(POSITIONS)
            now = self.twin.positions.get(name, -1) - (self.random.random() < 0.2)
            positions = {name: (max(-1, now), max(-1, now) + 1)}
        groups: tuple[GroupMoves, ...] = ()
        if self.random.random() < 0.4:
            number = self.random.randrange(PARTITIONS)
            start = self.twin.offsets.get(number, -1) - (self.random.random() < 0.2)
            groups = (moves("readers", {number: (max(-1, start), max(0, start + self.random.randrange(3)))}),)
        block = self.random.choice(BLOCKS) if self.random.random() < 0.3 else ""
        asked = commit(*outputs, groups=groups, positions=positions, block=block)
        self.asked.append(asked)
        return asked

    def a_change(self) -> TransactionChange:
        transactions = self.cluster.image.transactions
        kind = self.random.choice(("name", "block", "commit", "commit", "commit", "abort", "mark", "mark", "rare"))
        if kind == "name" or not self.keys:
            return self.an_initialisation()
        some = tuple(self.random.sample(self.keys, min(len(self.keys), 2)))
        if kind == "block":
            return OpenBlock(self.random.choice(BLOCKS), self.random.choice((1, 3)), 1_000)
        if kind == "commit":
            return self.a_commit()
        if kind == "abort":
            return Abort(tuple(some), NOW_MS)
        if kind == "mark":
            number = self.random.randrange(PARTITIONS)
            epoch = self.cluster.image.partitions[tp(number)].leader_epoch
            return Marked(TOPIC, number, epoch, tuple(transactions.unmarked(tp(number))[:2]))
        blocks = tuple(ExpiredBlock(b.first, b.changed) for b in transactions.blocks() if self.random.random() < 0.5)
        names = tuple(ExpiredProducer(p.transactional_id, *p.key) for p in transactions.producers())
        rare: list[TransactionChange] = [
            AbortOverdue(tuple(some)),
            RetireBlock("batch-1"),
            RetireBlock("batch-2"),
            Expire(self.cluster.term, blocks, names if self.random.random() < 0.3 else (), ()),
            Expire(self.cluster.term + 1, blocks, names, ()),
        ]
        return self.random.choice(rare)

    def an_initialisation(self) -> Initialize:
        name = self.random.choice(NAMES)
        known = self.attempts.get(name, [])[:ATTEMPTS_KEPT]
        repeats = bool(known) and self.random.random() < 0.4
        attempt = self.random.choice(known) if repeats else self.random.randbytes(16)
        after = self.random.choice(self.keys) if self.keys and self.random.random() < 0.2 else None
        return Initialize(name, 1_000, NOW_MS, attempt if attempt and self.random.random() < 0.8 else None, after)

    # --- One step ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        if self.random.random() < 0.03:
            self.renew_topic()
        change = self.a_change()
        retired, expired = self._ends_with(change)
        ahead: tuple[TransactionChange, ...] = ()
        to_ask = change
        if isinstance(change, Commit) and self.random.random() < 0.2:
            ahead, to_ask = self._staged(change)
        for part in ahead:
            self.apply(ChangeTransactions((part,)))
        result = self.apply(ChangeTransactions((to_ask,)))
        code = result.answers[0].code if result.answers else ""
        told = tuple(key for answer in result.answers for key in answer.keys)
        self._judge(change, code, told, retired, expired)
        self._compare()

    def apply(self, command: Command) -> TransactionsChanged:
        image, packed = self.cluster.image, encode(command)
        result, events = apply(image, image.index + 1, self.cluster.term, decode(packed))
        check(image)
        self.cluster.view.on_events(image.index, events)
        self.log.append((image.index, self.cluster.term, packed))
        self.told.append(events)
        for event in events:
            self.slow_view.on_events(self.slow_view.index, [event])
            self._compare_slow()
        self.slow_view.on_events(image.index, [])
        if self.random.random() < 0.1:
            self.cluster.image = decode_snapshot(encode_snapshot(image))
        return result  # type: ignore[return-value]

    def renew_topic(self) -> None:
        """The transactions that waited for markers in it wait no more, and the next topic of its name begins without
        them."""
        self.twin.ends = {one: {} for one in self.twin.ends}
        self.twin.offsets.clear()
        self.apply(DeleteTopic(TOPIC))
        self.apply(CreateTopic("orders", TOPIC, ((BrokerId(0),),) * PARTITIONS, ()))

    def _staged(self, asked: Commit) -> tuple[tuple[TransactionChange, ...], TransactionChange]:
        """The same in two parts, which arrive in any order."""
        pieces = [encode_piece(Piece(asked.outputs, ())), encode_piece(Piece((), asked.groups))]
        commit_id = self.random.randbytes(16)
        parts = [StagePart(commit_id, number, piece) for number, piece in enumerate(pieces)]
        self.random.shuffle(parts)
        whole = CommitStaged(commit_id, 2, digest_of(pieces), asked.positions, asked.block, asked.now_ms)
        return (*parts, parts[0]), whole

    def _ends_with(self, change: TransactionChange) -> tuple[range, list[range]]:
        """The ids of a named block, or of an expired one."""
        transactions = self.cluster.image.transactions
        name = getattr(change, "block", "") or (change.name if isinstance(change, RetireBlock) else "")
        block = transactions.open_block(name) if name else None
        retired = range(block.first, block.end) if block is not None else range(0)
        expired: list[range] = []
        if isinstance(change, Expire) and change.term == self.cluster.term:
            for one in change.blocks:
                found = transactions.block(one.first)
                expired += [range(found.first, found.end)] if found is not None else []
            expired += [range(one.producer_id, one.producer_id + 1) for one in change.producers]
        return retired, expired

    # --- Checks -------------------------------------------------------------------------------------------------------

    def _judge(self, change: Any, code: str, told: Any, retired: range, expired: list[range]) -> None:
        twin = self.twin
        match change:
            case Commit():
                self._judge_commit(change, code, retired)
            case Abort():
                keys = list(change.keys)
                if code == "transaction_committed":
                    assert any(twin.became[one] is Outcome.COMMITTED for one in keys)
                twin.abort(keys)
                if not code:
                    assert all(twin.became[one] is Outcome.ABORTED for one in keys)
            case AbortOverdue():
                twin.abort(list(change.keys))
            case Initialize() if self._is_repeated(change):
                self._judge_repeated(change, code, told)
            case Initialize() if code:
                producer = self.cluster.image.transactions.producer(change.transactional_id)
                assert producer is not None and change.after is not None and code == "producer_fenced"
                assert change.after not in (producer.key, producer.ended)
            case Initialize():
                self.attempts.setdefault(change.transactional_id, []).insert(0, change.attempt or b"")
                producer = self.cluster.image.transactions.producer(change.transactional_id)
                assert producer is not None and told == (producer.key,)
                assert producer.key not in twin.became, "nobody had this key before"
                # Of the producers of a name the last one may be undecided.
                twin.abort([one for one in twin.became if one.producer_id == producer.producer_id])
            case RetireBlock():
                twin.abort_id(retired)
            case Marked():
                twin.forget(change.partition, list(change.keys))
            case Expire():
                for ids in expired:
                    twin.abort_id(ids)
                producer_of = self.cluster.image.transactions.producer
                self.attempts = {name: known for name, known in self.attempts.items() if producer_of(name) is not None}
        self.keys += [one for one in self._handed_out(change, told) if one not in twin.became]
        twin.begin(self.keys)

    def _is_repeated(self, change: Initialize) -> bool:
        remembered = self.attempts.get(change.transactional_id, [])[:ATTEMPTS_KEPT]
        return bool(change.attempt) and change.attempt in remembered

    def _judge_repeated(self, change: Initialize, code: str, told: tuple[TransactionKey, ...]) -> None:
        """Nothing happens: the last initialized producer gets its key again, and every earlier one is fenced."""
        producer = self.cluster.image.transactions.producer(change.transactional_id)
        assert producer is not None
        if change.attempt == self.attempts[change.transactional_id][0]:
            assert told == (producer.key,) and self.twin.became[producer.key] is Outcome.UNDECIDED
        else:
            assert code == "producer_fenced" and not told

    def _handed_out(self, change: Any, told: tuple[TransactionKey, ...]) -> list[TransactionKey]:
        if isinstance(change, OpenBlock):
            block = self.cluster.image.transactions.block(told[0].producer_id)
            assert block is not None
            return [key(one) for one in range(block.first, block.end)]
        # A refused commit ends epochs, too; the rows show the result.
        return [*told, *(producer.key for producer in self.cluster.image.transactions.producers())]

    def _judge_commit(self, asked: Commit, code: str, retired: range) -> None:
        twin = self.twin
        before = [twin.became.get(one.key) for one in asked.outputs]
        if code in UNCHANGED:
            return
        if twin.takes(asked):
            assert code == "", (asked, code)
            twin.take(asked)
            twin.abort_id(retired)
            return
        if not code:
            # The first answer is repeated.
            assert all(outcome is Outcome.COMMITTED for outcome in before), asked
            return
        if code == "transaction_aborted":
            assert Outcome.ABORTED in before
        if code in ("transaction_committed", "position_taken"):
            assert code == "position_taken" or Outcome.COMMITTED in before
        if code == "position_taken":
            assert any(twin.positions.get(one.name, -1) >= one.new for one in asked.positions)
        # An accepted commit is never reported as not accepted.
        no = ("transaction_aborted", "transaction_committed", "producer_ids_expired", "offset_moved")
        said_no = code in (*no, "unknown_transaction", "unknown_partition", "stale_generation")
        assert not (said_no and any(twin.commits.get(one.key) is asked for one in asked.outputs))
        twin.abort([one.key for one in asked.outputs])
        twin.abort_id(retired)

    def _compare(self) -> None:
        """The image's answers to leaders equal the model's."""
        view, twin = self.cluster.view.transactions, self.twin
        for one, outcome in twin.became.items():
            for number in range(PARTITIONS):
                verdict = self.cluster.verdict(one, number)
                end = twin.ends.get(one, {}).get(number)
                if end is not None:
                    assert verdict == committed(end), one
                else:
                    assert verdict == (UNDECIDED if outcome is Outcome.UNDECIDED else ABORTED), (one, outcome)
            assert (view.refusal(one) == "") == (outcome is Outcome.UNDECIDED)
            assert view.unmarked_count(one) == len(twin.ends.get(one, {}))
        assert dict(view.positions()) == twin.positions
        assert self.cluster.committed() == twin.offsets

    def _compare_slow(self) -> None:
        """A copy in the middle of an entry lags, and is never wrong: the image's content is true."""
        slow, image = self.slow_view.transactions, self.cluster.image.transactions
        for one in self.keys[-20:]:
            for number in range(PARTITIONS):
                told = slow.verdict(one, tp(number))
                assert told.outcome is Outcome.UNDECIDED or self._was_or_is(told, image.verdict(one, tp(number)), one)

    def _was_or_is(self, told: Any, now: Any, one: TransactionKey) -> bool:
        if told == now:
            return True
        # This entry removes its ends.
        return bool(told.outcome is Outcome.COMMITTED and self.twin.became.get(one) is Outcome.COMMITTED)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60))
def test_a_commit_is_all_or_nothing_and_no_end_is_reversed_s13(seed: int, length: int) -> None:
    mess = Mess(seed)
    for _ in range(length):
        mess.step()
    image = mess.cluster.image
    restored = decode_snapshot(encode_snapshot(image))
    assert diff(image, restored) == []
    fresh = ClusterView()
    fresh.on_events(image.index, diff(ClusterImage(), restored))
    for one in mess.keys:
        for number in range(PARTITIONS):
            assert fresh.transactions.verdict(one, tp(number)) == mess.cluster.verdict(one, number)
    assert fresh.transactions.positions() == mess.cluster.view.transactions.positions()


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_same_commands_give_the_same_image_and_the_same_answers(seed: int) -> None:
    mess = Mess(seed)
    start = decode_snapshot(encode_snapshot(mess.cluster.image))
    for _ in range(30):
        mess.step()
    for (index, term, packed), told in zip(mess.log, mess.told, strict=True):
        _, events = apply(start, index, term, decode(packed))
        assert events == told
    assert encode_snapshot(start) == encode_snapshot(mess.cluster.image)
