"""Whole brokers, one image, and all faults between them: in the end readers see the committed records (S13).

Writers write to two partitions and commit their acknowledged batches. Brokers lose power or receive no decisions,
reports and messages get lost, leaders change, blocks expire, zombies continue to write. Then all faults heal: no
transaction stays open, no commit waits, and each partition shows exactly the records of committed transactions, in the
order of their offsets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from metadata.commands.transactions import Abort, AbortOverdue, Expire, ExpiredBlock
from partitions.manager import Produced
from raftlog.errors import RaftlogError
from raftlog.transactions import TransactionKey
from tests.support.metadata.groups import NOW_MS
from tests.support.metadata.transaction_world import TransactionWorld, tp
from tests.unit.metadata.image.test_transaction_stories import (
    judges_by_epoch,
    keeps_the_epoch,
    takes_what_is_expired,
)

PARTITIONS = 2
STEPS = 60


@dataclass
class Writer:
    """One transaction of one producer."""

    key: TransactionKey
    sent: dict[int, int] = field(default_factory=dict)
    """Partition → number of batches sent: the next sequence."""
    answers: list[tuple[int, bytes, list[Any]]] = field(default_factory=list)
    """(partition, value, its answer once it has arrived)."""
    outcome: str = ""
    """The outcome that its producer knows."""
    ends: dict[int, int] = field(default_factory=dict)

    @property
    def may_commit(self) -> bool:
        """Every record that it sent was acknowledged."""
        return all(len(answer) == 1 and isinstance(answer[0], Produced) for _, _, answer in self.answers)


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = TransactionWorld(PARTITIONS)
        self.writers: list[Writer] = []
        self.count = 0

    # --- Events -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        kinds = [self.begin, self.write, self.write, self.write, self.commit, self.commit, self.abort, self.again]
        kinds += [self.trouble, self.elect, self.crash, self.pass_time, self.pass_time, self.expire, self.peek]
        self.random.choice(kinds)()

    def begin(self) -> None:
        if self.random.random() < 0.5:
            self.writers.append(Writer(self.world.initialize(self.random.choice(("a", "b")))))
        else:
            self.writers += map(Writer, self.world.open_block(2))

    def _writer(self) -> Writer | None:
        """Mostly one that may continue; sometimes a zombie."""
        going_on = [writer for writer in self.writers if not writer.outcome]
        some = going_on if going_on and self.random.random() < 0.85 else self.writers
        return self.random.choice(some) if some else None

    def write(self) -> None:
        writer = self._writer()
        if writer is None:
            return
        number = self.random.randrange(PARTITIONS)
        self.count += 1
        value = f"{writer.key.producer_id}.{writer.key.producer_epoch}/{self.count}".encode()
        to = None if self.random.random() < 0.9 else self.random.randrange(3)
        if to is None and not self.world.leader_of(number).has_leader:
            return
        sequence = writer.sent.get(number, 0)
        answer = self.world.send(writer.key, number, value, to=to, sequence=sequence)
        writer.sent[number] = sequence + 1
        writer.answers.append((number, value, answer))

    def commit(self) -> None:
        writer = self._writer()
        if writer is None or writer.outcome or not writer.may_commit:
            return
        writer.ends = {}
        for number, _, (answer,) in writer.answers:
            writer.ends[number] = max(writer.ends.get(number, 0), answer.base_offset + 1)
        code = self.world.commit((writer.key, writer.ends))
        writer.outcome = code or "committed"
        if not code and self.random.random() < 0.3:
            # Its answer was lost: nothing has happened since.
            assert self.world.commit((writer.key, writer.ends)) == ""

    def abort(self) -> None:
        writer = self._writer()
        if writer is not None:
            code, _ = self.world.ask(Abort((writer.key,), NOW_MS))
            assert (code == "transaction_committed") <= (writer.outcome == "committed")
            writer.outcome = writer.outcome or code or "aborted"

    def again(self) -> None:
        """A retry, late or not, of a commit that was reported as committed, and of one that was refused."""
        decided = [writer for writer in self.writers if writer.outcome and writer.ends]
        if decided:
            writer = self.random.choice(decided)
            code = self.world.commit((writer.key, writer.ends))
            allowed = ("", "producer_fenced", "outcome_unknown")
            assert code in allowed if writer.outcome == "committed" else code != "", (writer, code)

    def trouble(self) -> None:
        number = self.random.randrange(3)
        kind = self.random.choice(("deaf", "mute", "cut", "heal", "heal"))
        if kind == "deaf":
            self.world.deaf.add(number)
        elif kind == "mute":
            self.world.mute.add(number)
        elif kind == "cut":
            self.world.cut(number)
        else:
            self.heal()

    def heal(self) -> None:
        self.world.join()
        self.world.mute.clear()
        self.world.hear(0, 1, 2)

    def elect(self) -> None:
        number = self.random.randrange(PARTITIONS)
        record = self.world.leader_of(number)
        others = [peer for peer in record.isr if peer != record.leader]
        if others and record.has_leader:
            self.world.elect(number, self.random.choice(others))

    def crash(self) -> None:
        if self.random.random() < 0.4:
            self.world.crash(self.random.randrange(3), self.random)

    def pass_time(self) -> None:
        self.world.wait(self.random.choice((0.01, 0.3, 2.0)))

    def expire(self) -> None:
        blocks = [b for b in self.world.image.transactions.blocks() if self.random.random() < 0.3]
        self.world.ask(Expire(1, tuple(ExpiredBlock(b.first, b.changed) for b in blocks), (), ()))

    def peek(self) -> None:
        """Every broker that believes to lead shows a beginning of the truth."""
        number = self.random.randrange(PARTITIONS)
        fetch = self.world.fetch(number, self.random.randrange(3))
        if fetch.errors == [""]:
            shown = fetch.committed()
            assert shown == self.expected(number)[: len(shown)]

    # --- The final check ----------------------------------------------------------------------------------------------

    def judge(self) -> None:
        self.heal()
        self.world.elect_all()
        self.world.wait(12.0)
        self.world.ask(AbortOverdue(tuple(writer.key for writer in self.writers)))
        self.world.wait(12.0)
        transactions = self.world.image.transactions
        assert transactions.ends_count == 0, "a commit waits for its markers for ever"
        for number in range(PARTITIONS):
            leader = self.world.nodes[self.world.leader_of(number).leader].broker.manager.drivers[tp(number)]
            assert leader.replica.leader is not None and leader.replica.leader.transactions.quiet
            assert self.world.read(number) == self.expected(number)

    def expected(self, number: int) -> list[bytes]:
        committed = [writer for writer in self.writers if writer.outcome == "committed"]
        records = [
            (answer[0].base_offset, value)
            for writer in committed
            for partition, value, answer in writer.answers
            if partition == number and answer and isinstance(answer[0], Produced)
        ]
        ends = {value: writer.ends.get(number, 0) for writer in committed for _, value, _ in writer.answers}
        return [value for offset, value in sorted(records) if offset < ends[value]]


def walk(seed: int) -> Walk:
    made = Walk(seed)
    made.begin()
    for _ in range(STEPS):
        made.step()
    made.judge()
    return made


@pytest.mark.parametrize("seed", range(10))
def test_readers_see_the_committed_records_whatever_goes_wrong_s13(seed: int) -> None:
    walk(seed)


def test_the_walks_reach_every_event() -> None:
    made = [walk(seed) for seed in range(5)]
    outcomes = {writer.outcome for one in made for writer in one.writers}
    assert {"committed", "aborted"} <= outcomes
    assert all(any(one.expected(number) for one in made) for number in range(PARTITIONS))


@pytest.mark.parametrize("without", [keeps_the_epoch, takes_what_is_expired, judges_by_epoch])
def test_walks_without_a_rule_break_something(without: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch)
    monkeypatch.setattr("tests.support.metadata.transaction_world.check", lambda image: None)
    for seed in range(30):
        try:
            walk(seed)
        except (AssertionError, RaftlogError):
            return
    raise AssertionError("no walk sees it")


@pytest.mark.soak
def test_a_thousand_walks_s13() -> None:
    for seed in range(1_000, 2_000):
        walk(seed)
