"""Snapshots: what is refused, and that equal states are equal bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.commands import ClientSession, NoOp
from metadata.image import ClusterImage, diff
from metadata.snapshot import UnknownSnapshot
from raftlog.errors import RemoteProtocolError
from tests.support.metadata_cluster import Cluster, report


def busy() -> Cluster:
    """A cluster in which every field of a snapshot holds something."""
    cluster = Cluster(partitions=2)
    cluster.fence(2)
    cluster.start(1, report(3, 7, cut=True))
    cluster.apply(NoOp(), session=ClientSession(b"s" * 16, 3, 1))
    return cluster


def test_an_empty_image_round_trips() -> None:
    image = ClusterImage.from_snapshot(ClusterImage().snapshot())
    assert (image.index, image.brokers, image.partitions) == (0, {}, {})


def test_what_was_derived_is_derived_again() -> None:
    image = busy().image
    restored = ClusterImage.from_snapshot(image.snapshot())
    restored.check_invariants()
    assert restored.starting == image.starting == {1}
    assert restored.answers == image.answers
    assert set(restored.leaderless) == set(image.leaderless)
    assert restored.tickets == image.tickets
    assert restored.take_events() == []
    assert diff(image, restored) == []


def test_a_newer_version_is_told_from_damage() -> None:
    packed = busy().image.snapshot()
    with pytest.raises(UnknownSnapshot, match="upgraded"):
        ClusterImage.from_snapshot(packed[:4] + struct.pack(">I", 2) + packed[8:])


@pytest.mark.parametrize("length", [0, 3, 11, 12, 40, -1])
def test_a_snapshot_that_was_cut_short_is_refused(length: int) -> None:
    packed = busy().image.snapshot()
    with pytest.raises(RemoteProtocolError):
        ClusterImage.from_snapshot(packed[:length])


@given(st.data())
def test_a_flipped_bit_is_found(data: st.DataObject) -> None:
    packed = bytearray(busy().image.snapshot())
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(RemoteProtocolError):
        ClusterImage.from_snapshot(packed)
