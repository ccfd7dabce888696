"""A compacted, replicated log compared with a dictionary.

Whatever keyed records are acknowledged, wherever and whenever a replica compacts, whichever replica leads, and
whichever was offline: a consumer that reads the leader's log from its start, and each in-sync replica read in this way,
ends with the dictionary of the acknowledged records (S1, S4). A remaining record is at its original offset, and all
logs end at the same one (S2). Every leader recognizes a resend of a producer's last batches, however few it copied
(S1).
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partitions.driver.requests import Produced
from raftlog.model import LeaderEpoch
from tests.support.clusters.compacted import CompactedCluster
from tests.support.partitions.compaction import records, table
from tests.support.partitions.replication_cluster import tp

BROKERS = 3
KEYS = st.sampled_from([b"a", b"b", b"a key that is longer than its hash"])
NUMBERS = st.integers(0, BROKERS - 1)
LEADER = st.none()
ROUNDS = st.lists(
    st.fixed_dictionaries(
        {
            "away": NUMBERS,
            "put": st.lists(
                st.tuples(KEYS, st.none() | st.binary(min_size=100, max_size=200)), min_size=5, max_size=12
            ),
            "elect": st.none() | NUMBERS,
            "compact": st.lists(LEADER | NUMBERS, min_size=1, max_size=3),
            "back": st.booleans(),
        }
    ),
    min_size=2,
    max_size=4,
)


class Twin:
    """The cluster, and every acknowledged record."""

    def __init__(self) -> None:
        self.cluster = CompactedCluster()
        self.entries: list[tuple[bytes, bytes | None]] = []
        self.leader = 0
        self.away: int | None = None

    def put(self, key: bytes, value: bytes | None) -> None:
        answer = self.cluster.put(key, value, number=self.leader, sequence=len(self.entries))
        assert isinstance(answer, Produced), answer
        assert answer.base_offset == len(self.entries)
        self.entries.append((key, value))

    def resend(self) -> None:
        """Resend the last batches: each is where it was."""
        for offset in range(max(0, len(self.entries) - 5), len(self.entries)):
            answer = self.cluster.put(*self.entries[offset], number=self.leader, sequence=offset)
            assert isinstance(answer, Produced) and answer.base_offset == offset, answer

    def elect(self, number: int) -> None:
        if number == self.away:
            return
        self.leader = number
        self.cluster.elect(number)
        self.cluster.pass_time(2)

    def send_away(self, number: int) -> None:
        if self.away is None and number != self.leader:
            self.away = number
            self.cluster.send_away(number, self.leader)

    def bring_back(self) -> None:
        if self.away is not None:
            self.cluster.bring_back(self.away, self.leader)
            self.cluster.set_isr(*range(BROKERS))
            self.cluster.pass_time(2)
            self.away = None

    @property
    def table(self) -> dict[bytes | None, bytes]:
        latest: dict[bytes | None, bytes | None] = dict(self.entries)
        return {key: value for key, value in latest.items() if value is not None}

    def check(self) -> None:
        for number, member in self.cluster.members.items():
            assert not member.offline, member.offline
            if number == self.away:
                continue
            log = self.cluster.log(number)
            log.check_invariants()
            assert log.log_end_offset == len(self.entries), number
            assert all(self.entries[offset] == (key, value) for offset, key, value in records(log))
            assert table(log) == self.table, number

    def go_through(self, step: dict[str, Any]) -> None:
        self.send_away(step["away"])
        for key, value in step["put"]:
            self.put(key, value)
        if step["elect"] is not None:
            self.elect(step["elect"])
        for number in step["compact"]:
            self.cluster.compact(self.leader if number is None else number)
            self.check()
        if step["back"]:
            self.bring_back()
        self.check()


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(rounds=ROUNDS)
def test_every_replica_is_equivalent_to_the_dictionary(rounds: list[dict[str, Any]]) -> None:
    twin = Twin()
    for step in rounds:
        twin.go_through(step)
    twin.bring_back()
    twin.check()
    for number in range(BROKERS):
        twin.elect(number)
        twin.resend()
        twin.check()
    assert twin.cluster.records[tp(0).partition].leader_epoch >= LeaderEpoch(BROKERS)
