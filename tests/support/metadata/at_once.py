"""The product's stepwise functions, run from beginning to end."""

from __future__ import annotations

from metadata.commands.envelope import Envelope
from metadata.commands.results import CommandResult
from metadata.image.apply import apply_in_steps
from metadata.image.diff import diff_in_steps
from metadata.image.image import ClusterImage, run
from metadata.records.events import MetadataEvent
from metadata.snapshot.encoder import decode_snapshot_in_steps
from raftlog.ports import Buffer


def apply(image: ClusterImage, index: int, term: int, envelope: Envelope) -> tuple[CommandResult, list[MetadataEvent]]:
    result = run(apply_in_steps(image, index, term, envelope))
    return result, image.take_events()


def diff(old: ClusterImage, new: ClusterImage) -> list[MetadataEvent]:
    return run(diff_in_steps(old, new))


def decode_snapshot(packed: Buffer) -> ClusterImage:
    return run(decode_snapshot_in_steps(packed))
