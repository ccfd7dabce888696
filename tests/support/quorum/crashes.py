"""Crashes of a process in the middle of its journal's work."""

from __future__ import annotations

from unittest import mock

import pytest

from jepsen_like.simulator.world.disk import SimDisk, SimulatedCrash
from metadata.journal.journal import Journal


def die_before_fsync(journal: Journal) -> None:
    """Write the staged records, and die before the fsync that would make them durable."""
    with mock.patch.object(SimDisk, "fsync_inode", side_effect=SimulatedCrash), pytest.raises(SimulatedCrash):
        journal.sync()
