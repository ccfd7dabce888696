"""A sequential model of the client commands: an independent implementation of what the quorum must do.

The clients use registers (a topic's name holds a topic id, and that topic holds a value) and one counter (blocks of
producer ids). Every command has unique content, so *exactly once* can be checked without sessions: the second copy of a
command in the log changes nothing, whatever envelope it has.

`Model.step` takes the state before and after one entry from the first node that applied it, and raises `Violation` if
the command cannot lead from one to the other. Every other node must then have the same state at that index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from jepsen_like.simulator.world.violation import Violation
from metadata.commands.cluster import AlterTopic, CreateTopic, DeleteTopic, GrantProducerIds
from metadata.commands.envelope import Command, Envelope
from metadata.image.image import ClusterImage

REGISTERS = tuple(f"register-{number}" for number in range(4))
VALUE = "retention.ms"


class State(NamedTuple):
    """The state that clients can observe."""

    granted: int
    """All producer ids below this one are granted."""
    registers: tuple[tuple[bytes, str] | None, ...]
    """(topic id, value) of each register; None if it is empty."""


EMPTY = State(0, (None,) * len(REGISTERS))


def state_of(image: ClusterImage) -> State:
    """The state in one node's image."""
    registers: list[tuple[bytes, str] | None] = []
    for name in REGISTERS:
        topic_id = image.topic_ids.get(name)
        if topic_id is None:
            registers.append(None)
        else:
            registers.append((bytes(topic_id), dict(image.topics[topic_id].configs).get(VALUE, "")))
    return State(int(image.next_producer_id), tuple(registers))


@dataclass(frozen=True, slots=True)
class Fact:
    """The effect of a command at its first place in the log."""

    index: int
    changed: bool
    granted: int = -1
    """The first producer id of a granted block."""


class Model:
    """The commands of all clients so far."""

    def __init__(self) -> None:
        self.facts: dict[Command, Fact] = {}
        """Command → the effect of its first copy, which is the effect of all its copies."""

    def step(self, index: int, term: int, envelope: Envelope, before: State, after: State) -> None:
        """Check one entry that was applied. Raises `Violation`."""
        command = envelope.command
        if not isinstance(command, CreateTopic | DeleteTopic | AlterTopic | GrantProducerIds):
            if after != before:
                raise Violation(f"S7: entry {index} ({command}) turns {before} into {after}")
            return
        known = self.facts.get(command)
        # Two clients may delete one topic by commands of the same content: the first may be refused and the second not.
        if known is not None and (known.changed or not isinstance(command, DeleteTopic)):
            if after != before:
                raise Violation(f"S7: entry {index} carries out {command}, of which {known} had been answered")
            return
        if envelope.term not in (None, term) and after != before:
            raise Violation(f"S7: entry {index} of term {term} carries out a command of term {envelope.term}")
        wanted = _carried_out(command, before)
        if after not in (before, wanted):
            raise Violation(f"S7: entry {index} ({command}) turns {before} into {after}")
        granted = before.granted if isinstance(command, GrantProducerIds) and after != before else -1
        self.facts[command] = Fact(index, after != before, granted)


def _carried_out(command: Command, before: State) -> State:
    """The state after the command, if it is not refused."""
    registers = list(before.registers)
    if isinstance(command, GrantProducerIds):
        return before._replace(granted=before.granted + command.count)
    if isinstance(command, CreateTopic):
        place = REGISTERS.index(command.name)
        if registers[place] is None:
            registers[place] = (bytes(command.topic_id), dict(command.configs)[VALUE])
    else:
        assert isinstance(command, DeleteTopic | AlterTopic)
        for place, held in enumerate(registers):
            if held is not None and held[0] == command.topic_id:
                value = dict(command.assign)[VALUE] if isinstance(command, AlterTopic) else None
                registers[place] = None if value is None else (held[0], value)
    return before._replace(registers=tuple(registers))
