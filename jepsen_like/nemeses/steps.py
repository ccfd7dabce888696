"""Faults as values: a description of what to inject. Pure.

A step is drawn by a plan (`plans.py`) from a seed and the known facts about the cluster (`Facts`), and executed by an
injection (`injections.py` has the table). Equal steps do the same.

`kind` is the fault's name in a run's records, `targets` are the nodes or links (`n1>n2`) that it affects. `claims` are
the resources that no other fault may use meanwhile: two faults that both need to stop and start a process, or to set
the rules of one network, would undo each other and prove nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

CLAIM_NETWORK = "network"
CLAIM_METADATA = "metadata"


def process_claims(nodes: tuple[str, ...]) -> frozenset[str]:
    return frozenset(f"process:{node}" for node in nodes)


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One partition, as the cluster last reported it."""

    topic: str
    partition: int
    leader: str | None
    replicas: tuple[str, ...]
    min_insync_replicas: int = 1


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a plan may use. `leaders`, `controller` and `partitions` are empty if the cluster did not
    answer.
    """

    nodes: tuple[str, ...]
    minority: tuple[str, ...]
    """Less than half of the nodes, the same for a whole run: only their files are ever damaged."""
    leaders: tuple[str, ...] = ()
    """Leaders of partitions."""
    controller: str | None = None
    partitions: tuple[PartitionFacts, ...] = ()
    voters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OnNodes:
    """A fault of some nodes' processes, all at the same time. `aim`: how they were chosen."""

    kind: ClassVar[str]
    nodes: tuple[str, ...]
    aim: str = ""

    @property
    def targets(self) -> tuple[str, ...]:
        return self.nodes

    @property
    def claims(self) -> frozenset[str]:
        return process_claims(self.nodes)


class Kill(OnNodes):
    """SIGKILL, and a start later."""

    kind = "kill"


class Pause(OnNodes):
    """SIGSTOP, and SIGCONT later."""

    kind = "pause"


class FullDisk(OnNodes):
    """A disk without free space, which nothing frees from outside."""

    kind = "disk-full"


class ReadOnly(OnNodes):
    """The file system finds an error and refuses writes."""

    kind = "read-only"


@dataclass(frozen=True, slots=True)
class FewDescriptors(OnNodes):
    """While the nodes run, they may open `spare` more files, which connections of ours take.

    A settable clock is read from a file, so the clocks of these nodes are left alone.
    """

    kind = "descriptors"
    spare: int = 0

    @property
    def claims(self) -> frozenset[str]:
        return process_claims(self.nodes) | {f"clock:{node}" for node in self.nodes}


@dataclass(frozen=True, slots=True)
class IdleConnections(OnNodes):
    """The nodes are killed and started with a `limit` of descriptors; then idle `connections` are opened to each
    listener.
    """

    kind = "idle-connections"
    limit: int = 0
    connections: int = 0


@dataclass(frozen=True, slots=True)
class FailSync(OnNodes):
    """Every fsync, and every write that is one, fails (EIO) from the `first`-th on."""

    kind = "fsync-error"
    first: int = 1


@dataclass(frozen=True, slots=True)
class SlowSync(OnNodes):
    """Every fsync, and every write that is one, takes `delay_ms` longer."""

    kind = "slow-fsync"
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Power(OnNodes):
    """The power of the nodes' disks fails while they run, together or one after the other in this order."""

    kind = "power"
    survivors: tuple[str, ...] = ()
    """Which unsynced data reaches each disk (`power_loss.Survivors`)."""
    seed: int = 0
    """Determines which parts survive."""
    slow_ms: int = 0
    """Delay of their fsyncs for a while before the failure: records that are acknowledged early are then on no disk."""


@dataclass(frozen=True, slots=True)
class SlowPower(Power):
    """A power failure while fsyncs are slow."""

    kind = "slow-power"


@dataclass(frozen=True, slots=True)
class PowerAndRot(Power):
    """When the power is back, a bit of the last batch of one of `rotten`'s replicas is flipped.

    With `each`, a bit of every replica's last batch, and that node is started with a bare majority, before the others.
    """

    kind = "power-rot"
    rotten: str = ""
    each: bool = False


@dataclass(frozen=True, slots=True)
class MonotonicOffset(OnNodes):
    """The nodes are killed and started again with a monotonic clock that is ahead by `seconds`."""

    kind = "clock-monotonic"
    seconds: int = 0


@dataclass(frozen=True, slots=True)
class AmnesiaInTheMiddle:
    """A minority is absent (paused or cut off) while the others acknowledge records; then one of those loses power.
    While it restarts, the minority returns and the others are cut off. Victim and minority are a majority: the
    records acknowledged meanwhile must have been on the victim's disk.

    If all nodes but a leader lose power, no minority needs to be absent: the victims are a majority without the leader,
    and it is killed.
    """

    minority: tuple[str, ...]
    victims: tuple[str, ...]
    others: tuple[str, ...]
    by: str
    """`pause` or `cut`; without meaning if there is no minority."""
    phase_seconds: float
    survivors: str
    seed: int = 0
    slow_ms: int = 0
    """As `Power.slow_ms`, for the victims."""

    @property
    def kind(self) -> str:
        if not self.minority:
            return "followers-forget"
        kind = "pause-kill" if self.by == "pause" else "part-kill"
        return f"slow-{kind}" if self.slow_ms else kind

    @property
    def targets(self) -> tuple[str, ...]:
        return (*self.minority, *self.victims, *self.others)

    @property
    def claims(self) -> frozenset[str]:
        return process_claims(self.targets) | {CLAIM_NETWORK}


@dataclass(frozen=True, slots=True)
class OnLinks:
    """A fault of some directed links. `shape`: the shape that they form."""

    kind: ClassVar[str]
    links: tuple[str, ...]
    shape: str = ""

    @property
    def targets(self) -> tuple[str, ...]:
        return self.links

    @property
    def claims(self) -> frozenset[str]:
        return frozenset({CLAIM_NETWORK})


class Cut(OnLinks):
    """Nothing arrives over the links."""

    kind = "partition"


@dataclass(frozen=True, slots=True)
class Slow(OnLinks):
    """Each piece is delayed."""

    kind = "slow-links"
    delay_ms: int = 0
    jitter_ms: int = 0


@dataclass(frozen=True, slots=True)
class Stall(OnLinks):
    """Some of the connections over the links stall silently, others continue."""

    kind = "stall"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Reset(OnLinks):
    """All connections over the links are reset repeatedly."""

    kind = "reset"
    period_ms: int = 1000


@dataclass(frozen=True, slots=True)
class Linger(OnLinks):
    """Connections over the links break, and the data in transit arrives long after it was resent."""

    kind = "late-bytes"
    delay_ms: int = 0
    linger_ms: int = 0


@dataclass(frozen=True, slots=True)
class ClockFault:
    """A fault of some nodes' wall clocks."""

    kind: ClassVar[str]
    nodes: tuple[str, ...]

    @property
    def targets(self) -> tuple[str, ...]:
        return self.nodes

    @property
    def claims(self) -> frozenset[str]:
        return frozenset(f"clock:{node}" for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Bump(ClockFault):
    """Each clock is set by these seconds, and back at the heal."""

    kind = "clock-bump"
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class WrongStart(ClockFault):
    """The nodes are killed and started with clocks that are wrong by these seconds; the heal corrects the clocks while
    the nodes run.
    """

    kind = "clock-start"
    seconds: tuple[float, ...] = ()

    @property
    def claims(self) -> frozenset[str]:
        return frozenset(f"clock:{node}" for node in self.nodes) | process_claims(self.nodes)


@dataclass(frozen=True, slots=True)
class Strobe(ClockFault):
    """The clock jumps back and forth by `seconds`, every `period` seconds."""

    kind = "clock-strobe"
    seconds: float = 0.0
    period: float = 1.0


@dataclass(frozen=True, slots=True)
class OnFile:
    """A fault of one file of a node whose process was killed.

    `files` are kinds of files (`damage.py`), of which the first that the node has is used; `seed` determines the file
    and the place in it.
    """

    kind: ClassVar[str]
    node: str
    files: tuple[str, ...]
    seed: int

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.node,)

    @property
    def claims(self) -> frozenset[str]:
        return process_claims((self.node,))


@dataclass(frozen=True, slots=True)
class Flip(OnFile):
    """Some bits are flipped; with `running` while the node runs, if the file belongs to a partition."""

    kind = "bitflip"
    bits: int = 1
    running: bool = False


@dataclass(frozen=True, slots=True)
class Truncate(OnFile):
    """Bytes are cut off the file's end."""

    kind = "truncate"
    bytes: int = 1


@dataclass(frozen=True, slots=True)
class RollBack(OnFile):
    """The file is restored to its content of `age` seconds before."""

    kind = "rollback"
    age: float = 1.0


@dataclass(frozen=True, slots=True)
class ReplaceDisk:
    """A node loses all its data and returns with an empty disk by the operator's procedure."""

    node: str
    kind = "replace-disk"

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.node,)

    @property
    def claims(self) -> frozenset[str]:
        return process_claims((self.node,)) | {CLAIM_METADATA}


@dataclass(frozen=True, slots=True)
class RemoveVoter:
    """A voter is removed from the metadata quorum for a while."""

    node: str
    kind = "remove-voter"

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.node,)

    @property
    def claims(self) -> frozenset[str]:
        return frozenset({CLAIM_METADATA})


@dataclass(frozen=True, slots=True)
class Reassign:
    """Some partitions, by (topic, partition), get other replicas, and their old ones back at the heal."""

    moves: tuple[tuple[str, int, tuple[str, ...]], ...]
    kind = "reassign"

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(f"{topic}/{partition}" for topic, partition, _ in self.moves)

    @property
    def claims(self) -> frozenset[str]:
        return frozenset({CLAIM_METADATA})


@dataclass(frozen=True, slots=True)
class Drain:
    """A broker holds no replica for a while."""

    node: str
    kind = "drain"

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.node,)

    @property
    def claims(self) -> frozenset[str]:
        return frozenset({CLAIM_METADATA})


Step = OnNodes | AmnesiaInTheMiddle | OnLinks | ClockFault | OnFile | ReplaceDisk | RemoveVoter | Reassign | Drain
