"""The placement of the replicas of new partitions: leaders and replicas spread evenly, racks kept apart.

The live brokers are lined up so that neighbours are in different racks. Partition by partition the leader moves one
step along the line; its followers are the next brokers in racks that the partition lacks (then any), those with the
fewest replicas first. So every broker leads the same number of partitions, give or take one, and when one dies its
leaderships are spread over many.

The result is a function of its arguments. The proposer draws `start`, so that topics of one partition do not all begin
at the same broker, and the outcome travels in the command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from raftlog.errors import InvalidRequest, RetriableError
from raftlog.model import BrokerId, BrokerRecord

DEFAULT_REPLICATION_FACTOR = 3


def default_replication_factor(brokers: Sequence[BrokerRecord]) -> int:
    """Three, or as many as there are registered brokers (at least one)."""
    return max(1, min(DEFAULT_REPLICATION_FACTOR, len(brokers)))


def place(
    brokers: Sequence[BrokerRecord],
    partition_count: int,
    replication_factor: int,
    *,
    start: int,
    replica_counts: Mapping[BrokerId, int] | None = None,
) -> tuple[tuple[BrokerId, ...], ...]:
    """Replicas for `partition_count` new partitions, the preferred leader first.

    `brokers` are all that are registered, `replica_counts` what they carry already. Fenced brokers are used only where
    the live ones are too few. Raises `InvalidRequest` when there are not as many brokers as replicas, `RetriableError`
    when none is live.
    """
    if partition_count < 1 or replication_factor < 1:
        raise InvalidRequest("invalid_request", "a topic has at least one partition, and a partition one replica")
    if replication_factor > len(brokers):
        raise InvalidRequest(
            "invalid_request", f"replication factor {replication_factor} is more than the {len(brokers)} brokers"
        )
    line = line_up([broker for broker in brokers if not broker.fenced])
    if not line:
        raise RetriableError("not_enough_replicas", "no broker is live")
    if len(line) < replication_factor:
        fenced = line_up([broker for broker in brokers if broker.fenced])
        spare = fenced[: replication_factor - len(line)]
    else:
        spare = []
    counts = {broker.broker_id: (replica_counts or {}).get(broker.broker_id, 0) for broker in (*line, *spare)}
    placed = []
    for number in range(start, start + partition_count):
        chosen = _replicas(line, spare, number, replication_factor, counts)
        for broker_id in chosen:
            counts[broker_id] += 1
        placed.append(chosen)
    return tuple(placed)


def line_up(brokers: Sequence[BrokerRecord]) -> list[BrokerRecord]:
    """The brokers in an order in which neighbours are of different racks, as far as the racks allow."""
    racks: dict[str, list[BrokerRecord]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.broker_id):
        racks.setdefault(broker.rack, []).append(broker)
    spread = [
        ((place + 0.5) / len(rack), rack[0].rack, broker.broker_id, broker)
        for rack in racks.values()
        for place, broker in enumerate(rack)
    ]
    return [broker for *_, broker in sorted(spread, key=lambda entry: entry[:3])]


def _replicas(
    line: Sequence[BrokerRecord],
    spare: Sequence[BrokerRecord],
    number: int,
    replication_factor: int,
    counts: Mapping[BrokerId, int],
) -> tuple[BrokerId, ...]:
    """The replicas of one partition: its leader by turn, then those that are least like the chosen and least laden."""
    lead = number % len(line)
    # Followers are looked for behind the leader, from another place in each round along the line.
    shift = number // len(line)
    behind = [line[(lead + 1 + (shift + step) % max(1, len(line) - 1)) % len(line)] for step in range(len(line) - 1)]
    chosen = [line[lead]]
    racks = {line[lead].rack: 1}
    rest = [*behind, *spare]

    def likeness(place: int) -> tuple[bool, int, int, int]:
        broker = rest[place]
        return (broker.fenced, racks.get(broker.rack, 0), counts[broker.broker_id], place)

    while len(chosen) < replication_factor:
        follower = rest.pop(min(range(len(rest)), key=likeness))
        chosen.append(follower)
        racks[follower.rack] = racks.get(follower.rack, 0) + 1
    return tuple(broker.broker_id for broker in chosen)
