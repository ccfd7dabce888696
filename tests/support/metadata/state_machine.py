"""A state machine that applies an entry at once, for tests: production applies entries in steps."""

from __future__ import annotations

from metadata.commands.results import CommandResult
from metadata.quorum.machine import StateMachine
from metadata.raft.engine import Committed, InstalledSnapshot


def apply_at_once(machine: StateMachine, entry: Committed | InstalledSnapshot) -> CommandResult | None:
    """Apply one entry and return the command's answer, if there was a command."""
    machine.give([entry])
    answers = [result for _, result in machine.carry_on(lambda: True)]
    return answers[-1]
