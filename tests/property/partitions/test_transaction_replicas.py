"""Transactions over three replicas of one partition, with every possible reordering (S13).

Producers write, also late; decisions reach some brokers and not others; links stop, leaders change, brokers restart. A
`read_committed` reader sees at any moment no record twice and none that is not part of a commit, and in the end, when
all brokers have received everything, all of those and nothing else; no transaction is open then.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raftlog.errors import RaftlogError
from raftlog.transactions import TransactionKey
from tests.support.partitions.replication_cluster import ReplicationCluster, tp
from tests.support.partitions.transaction_logs import Decisions, key

BROKERS = (0, 1, 2)
STEPS = 30


@dataclass
class Producer:
    """One transaction in its producer's view."""

    key: TransactionKey
    sent: list[tuple[bytes, list[Any]]] = field(default_factory=list)
    ended: bool = False
    meant: list[bytes] = field(default_factory=list)
    """The values of a commit."""

    @property
    def certain(self) -> bool:
        """Every record that it sent was acknowledged."""
        return all(answers and not isinstance(answers[0], RaftlogError) for _, answers in self.sent)


class Table:
    """The cluster, and the records that must be visible."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = ReplicationCluster(brokers=len(BROKERS))
        self.producers: list[Producer] = []
        self.decided: list[Callable[[Decisions], None]] = []
        self.heard = dict.fromkeys(BROKERS, 0)
        self.plain: list[tuple[bytes, list[Any]]] = []
        self.values = 0

    @property
    def leader(self) -> int:
        return int(self.cluster.records[0].leader)

    # --- Steps ---

    def write(self) -> None:
        """A producer writes, ended or not: a late write comes from a producer that does not know of the end."""
        if not self.producers or self.random.random() < 0.3:
            self.producers.append(Producer(key(len(self.producers))))
        one = self.random.choice(self.producers)
        if not one.ended and one.sent and self.random.random() < 0.2:
            value, sequence = one.sent[-1][0], len(one.sent) - 1  # a resend
        else:
            self.values += 1
            value, sequence = b"t%d" % self.values, len(one.sent)
        answers = self.cluster.write(self.leader, one.key, value, sequence=sequence)
        if not one.ended and sequence == len(one.sent):
            one.sent.append((value, answers))

    def write_plain(self) -> None:
        self.values += 1
        value = bytes(self.values)
        self.plain.append((value, self.cluster.produce(self.leader, size=self.values)))

    def end(self) -> None:
        """A producer ends: with a commit only if everything that it sent is acknowledged."""
        undecided = [one for one in self.producers if not one.ended]
        if not undecided:
            return
        one = self.random.choice([one for one in undecided if one.certain] or undecided)
        one.ended = True
        if one.certain and self.random.random() < 0.7:
            one.meant = [value for value, _ in one.sent]
            ends = {tp(0): one.sent[-1][1][0].base_offset + 1} if one.sent else {}
            self.decided.append(lambda decisions: decisions.commit(one.key, ends))
        else:
            self.decided.append(lambda decisions: decisions.abort(one.key))

    def hear(self, number: int | None = None) -> None:
        """One broker receives all decisions so far."""
        number = self.random.choice(BROKERS) if number is None else number
        for decide in self.decided[self.heard[number] :]:
            self.cluster.decide(decide, to=[number])
        self.heard[number] = len(self.decided)

    def stop_a_link(self) -> None:
        for number in set(BROKERS) - {self.leader}:
            if self.random.random() < 0.5 and self.leader in self.cluster.members[number].links:
                self.cluster.leader_end(number, self.leader).paused = True

    def resume(self) -> None:
        for member in self.cluster.members.values():
            for link in member.links.values():
                for end in (link, link.other):
                    if end.paused:
                        end.resume()

    def elect(self) -> None:
        # A leader has received every decision before its election: both are in the metadata log.
        number = self.random.choice(BROKERS)
        self.hear(number)
        self.cluster.elect(number)
        self.resume()

    def restart(self) -> None:
        number = self.random.choice([number for number in BROKERS if number != self.leader])
        cluster = self.cluster
        disk = cluster.members[number].disk
        for link in cluster.members.pop(number).links.values():
            link.close()
        cluster.settle()
        cluster.start(number, disk, clean_shutdown=False)
        self.heard[number] = 0
        self.hear(number)
        cluster.tell(*cluster.brokers(), cluster.topic, *cluster.records.values(), to=[number])

    def pass_time(self) -> None:
        for _ in range(3):
            self.cluster.settle()
            self.cluster.scheduler.advance(0.25)
        self.cluster.settle()

    # --- Invariants ---

    def committed(self) -> list[bytes | None] | None:
        """The records that a reader sees; None if no leader shows anything."""
        fetch = self.cluster.fetch(self.leader, 0, isolation=1)
        self.cluster.settle()
        return fetch.committed() if fetch.errors == [""] else None

    def check(self) -> None:
        seen = self.committed()
        if seen is None:
            return
        allowed = {value for one in self.producers for value in one.meant} | {value for value, _ in self.plain}
        assert len(set(seen)) == len(seen), "nothing twice (S1)"
        assert set(seen) <= allowed, "nothing that is not committed and meant (S13)"

    def check_all(self) -> None:
        """After all brokers have received everything, and time has passed."""
        self.resume()
        self.pass_time()
        for one in self.producers:
            if not one.ended:
                one.ended = True
                self.decided.append(lambda decisions, one=one: decisions.abort(one.key))  # type: ignore[misc]
        for number in BROKERS:
            self.hear(number)
        for _ in range(4):
            self.pass_time()
        seen = self.committed()
        assert seen is not None
        of_transactions = [value for value in seen if value is not None and value.startswith(b"t")]
        assert sorted(of_transactions) == sorted(value for one in self.producers for value in one.meant)
        acked = {value for value, answers in self.plain if answers and not isinstance(answers[0], RaftlogError)}
        assert acked <= set(seen)
        for member in self.cluster.members.values():
            driver = member.manager.drivers[tp(0)]
            assert driver.facts().open_transactions == ()
            assert driver.reads.settled_end == driver.replica.high_watermark == driver.log.log_end_offset
            assert not member.offline
        logs = [self.log_of(number) for number in BROKERS]
        assert logs[0] == logs[1] == logs[2], "S4"

    def log_of(self, number: int) -> list[tuple[int, int]]:
        found = []
        source = self.cluster.members[number].manager.drivers[tp(0)].log.segments.header_source()
        for header in source.headers_from(source.start_offset):
            found.append((header.base_offset, header.crc))
        return found


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_readers_see_the_committed_records_whichever_replica_leads(seed: int) -> None:
    table = Table(seed)
    steps = (table.write, table.write, table.write, table.write_plain, table.end, table.hear, table.stop_a_link)
    rare = (table.resume, table.elect, table.restart, table.pass_time)
    for _ in range(STEPS):
        table.random.choice(rare if table.random.random() < 0.25 else steps)()
        if table.random.random() < 0.7:
            table.cluster.settle()
        table.check()
    table.check_all()
