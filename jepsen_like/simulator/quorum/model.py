"""What the quorum's commands must come to, told once more and independently: the sequential model of the clients' part.

The clients use registers (a topic's name holds a topic id, and that topic a value) and one counter (blocks of producer
ids). Every command is unique by its content, so that *exactly once* needs no session to be judged: a command that comes
a second time in the log changes nothing, whatever it carries.

`Model.step` is given the state before and after one entry, as the first node that applied it has them, and raises
`Violation` where no reading of the command leads from one to the other. Every other node must then have the same state
at that index.
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
    """What clients can see."""

    granted: int
    """Producer ids below this were granted."""
    registers: tuple[tuple[bytes, str] | None, ...]
    """(topic id, value) by register; None where it is empty."""


EMPTY = State(0, (None,) * len(REGISTERS))


def state_of(image: ClusterImage) -> State:
    """As one node has it."""
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
    """What became of a command at its first place in the log."""

    index: int
    changed: bool
    granted: int = -1
    """The first producer id, where some were granted."""


class Model:
    """All clients' commands so far."""

    def __init__(self) -> None:
        self.facts: dict[Command, Fact] = {}
        """By content: what became of the first copy, and so of all."""

    def step(self, index: int, term: int, envelope: Envelope, before: State, after: State) -> None:
        """One entry was applied. Raises `Violation`."""
        command = envelope.command
        if not isinstance(command, CreateTopic | DeleteTopic | AlterTopic | GrantProducerIds):
            if after != before:
                raise Violation(f"S7: entry {index} ({command}) turns {before} into {after}")
            return
        known = self.facts.get(command)
        # Two clients may delete one topic, by the same content: not known any more to one, it may be to the other.
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
    """The state after, if the command is not refused."""
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
