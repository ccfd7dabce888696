"""Faults as values: what one of them is to do, before anybody does it. Pure.

A step is drawn by a plan (`plans.py`) from a seed and what is known of the cluster (`Facts`), and carried out by an
injection (`injections.py` says which). Equal steps do the same.

`kind` is what the fault is called in a run's records, `targets` whom it is done to: nodes, or links as `n1>n2`.
`claims` are what nobody else may break meanwhile: two faults that both need to end and start a process, or to set the
rules of one network, would undo each other and prove nothing.
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
    """One partition, as the cluster last told."""

    topic: str
    partition: int
    leader: str | None
    replicas: tuple[str, ...]
    min_insync_replicas: int = 1


@dataclass(frozen=True, slots=True)
class Facts:
    """What a plan may know. `leaders`, `controller` and `partitions` are empty where the cluster did not tell."""

    nodes: tuple[str, ...]
    minority: tuple[str, ...]
    """Less than half of the nodes, the same for a whole run: only their files are ever damaged."""
    leaders: tuple[str, ...] = ()
    """Of partitions."""
    controller: str | None = None
    partitions: tuple[PartitionFacts, ...] = ()
    voters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OnNodes:
    """What is done to some nodes as processes, all at the same time. `aim`: how they were chosen."""

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
    """SIGKILL, and after a while a start."""

    kind = "kill"


class Pause(OnNodes):
    """SIGSTOP, and after a while SIGCONT."""

    kind = "pause"


class FullDisk(OnNodes):
    """No room for anybody, and no hand that makes some."""

    kind = "disk-full"


class ReadOnly(OnNodes):
    """The file system finds an error and refuses to be written."""

    kind = "read-only"


@dataclass(frozen=True, slots=True)
class FewDescriptors(OnNodes):
    """While they run they may open so many more files, which connections of ours take, and no other. A clock that is
    set is read from a file, so theirs are left alone."""

    kind = "descriptors"
    spare: int = 0

    @property
    def claims(self) -> frozenset[str]:
        return process_claims(self.nodes) | {f"clock:{node}" for node in self.nodes}


@dataclass(frozen=True, slots=True)
class IdleConnections(OnNodes):
    """Killed, and started with so few descriptors; then so many connections to each of their listeners do nothing."""

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
    """Every fsync, and every write that is one, takes so much longer."""

    kind = "slow-fsync"
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Power(OnNodes):
    """The power of their disks fails while they run, together or one after the other in this order."""

    kind = "power"
    survivors: tuple[str, ...] = ()
    """What else than the synced reaches each disk (`power_loss.Survivors`)."""
    seed: int = 0
    """Of the parts that do."""
    slow_ms: int = 0
    """By so much their fsyncs take longer, for a while before: what is answered early is far from any disk then."""


@dataclass(frozen=True, slots=True)
class SlowPower(Power):
    """While fsyncs are slow."""

    kind = "slow-power"


@dataclass(frozen=True, slots=True)
class PowerAndRot(Power):
    """When the power is back, a bit of the last batch of one of `rotten`'s replicas is the other way round; with `each`
    of every one, and that node is started with a bare majority, before the others."""

    kind = "power-rot"
    rotten: str = ""
    each: bool = False


@dataclass(frozen=True, slots=True)
class MonotonicOffset(OnNodes):
    """Killed and started again with a monotonic clock that is so far ahead."""

    kind = "clock-monotonic"
    seconds: int = 0


@dataclass(frozen=True, slots=True)
class AmnesiaInTheMiddle:
    """A minority is away (paused or cut off) while the others acknowledge; then one of those loses power; while it
    comes back the minority does, too, and the others are cut off. Victim and minority are a majority: what was
    acknowledged meanwhile must have been on the victim's disk.

    Nobody needs to be away where all but a leader lose power: they are a majority without it, and it is killed."""

    minority: tuple[str, ...]
    victims: tuple[str, ...]
    others: tuple[str, ...]
    by: str
    """`pause` or `cut`; where the minority is nobody it says nothing."""
    phase_seconds: float
    survivors: str
    seed: int = 0
    slow_ms: int = 0
    """As `Power.slow_ms`, of the victims."""

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
    """What is done to some directed links. `shape`: what they are together."""

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
    """Nothing arrives over them."""

    kind = "partition"


@dataclass(frozen=True, slots=True)
class Slow(OnLinks):
    """Each piece takes so long."""

    kind = "slow-links"
    delay_ms: int = 0
    jitter_ms: int = 0


@dataclass(frozen=True, slots=True)
class Stall(OnLinks):
    """Some of the connections over them stop without a word, others go on."""

    kind = "stall"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Reset(OnLinks):
    """All connections over them end, again and again."""

    kind = "reset"
    period_ms: int = 1000


@dataclass(frozen=True, slots=True)
class Linger(OnLinks):
    """Connections over them break, and what was on its way arrives long after it was sent again."""

    kind = "late-bytes"
    delay_ms: int = 0
    linger_ms: int = 0


@dataclass(frozen=True, slots=True)
class ClockFault:
    """Wall clocks of some nodes."""

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
    """Each is set by so many seconds, and back at the heal."""

    kind = "clock-bump"
    seconds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class WrongStart(ClockFault):
    """Killed, and started with clocks that are wrong by so many seconds; at the heal they are set right, while the
    nodes run."""

    kind = "clock-start"
    seconds: tuple[float, ...] = ()

    @property
    def claims(self) -> frozenset[str]:
        return frozenset(f"clock:{node}" for node in self.nodes) | process_claims(self.nodes)


@dataclass(frozen=True, slots=True)
class Strobe(ClockFault):
    """Back and forth by `seconds`, every `period` seconds."""

    kind = "clock-strobe"
    seconds: float = 0.0
    period: float = 1.0


@dataclass(frozen=True, slots=True)
class OnFile:
    """What is done to one file of a node whose process was killed. `files` are kinds of files (`damage.py`): the first
    of which the node has one; `seed` draws which one and where."""

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
    """Some bits of it; with `running` while the node runs, if it is of a partition."""

    kind = "bitflip"
    bits: int = 1
    running: bool = False


@dataclass(frozen=True, slots=True)
class Truncate(OnFile):
    """Bytes off its end."""

    kind = "truncate"
    bytes: int = 1


@dataclass(frozen=True, slots=True)
class RollBack(OnFile):
    """It is again as it was so many seconds before."""

    kind = "rollback"
    age: float = 1.0


@dataclass(frozen=True, slots=True)
class ReplaceDisk:
    """A node loses all that it had, and comes back on an empty disk by the operator's procedure."""

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
    """The metadata quorum does without it for a while."""

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
    """Other replicas for some partitions, by (topic, partition), and back at the heal."""

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
