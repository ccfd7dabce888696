"""Snapshots: refusals, and equal bytes for equal states."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.commands.cluster import CreateTopic, DeleteTopic, NoOp, SetFeatureLevel
from metadata.commands.envelope import ClientSession
from metadata.commands.results import Done
from metadata.image.image import ClusterImage
from metadata.image.invariants import check
from metadata.quorum.machine import StateMachine
from metadata.raft.engine import InstalledSnapshot
from metadata.snapshot.encoder import VERSION, SnapshotEncoder, UnknownSnapshot, encode_snapshot
from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId, TopicId
from raftlog.version import FEATURE_LEVEL
from tests.support.metadata.at_once import decode_snapshot, diff
from tests.support.metadata.cluster import Cluster, report
from tests.support.metadata.state_machine import apply_at_once


def busy() -> Cluster:
    """A cluster in which every field of a snapshot is set."""
    cluster = Cluster(partitions=2)
    cluster.fence(2)
    cluster.start(1, report(3, 7, cut=True))
    cluster.apply(NoOp(), session=ClientSession(b"s" * 16, 3, 1))
    return cluster


def test_an_empty_image_round_trips() -> None:
    image = decode_snapshot(encode_snapshot(ClusterImage()))
    assert (image.index, image.brokers, image.partitions) == (0, {}, {})


def test_derived_state_is_derived_again() -> None:
    image = busy().image
    restored = decode_snapshot(encode_snapshot(image))
    check(restored)
    assert restored.starting == image.starting == {1}
    assert restored.sessions.answers == image.sessions.answers and restored.sessions.seen == image.sessions.seen
    assert set(restored.leaderless) == set(image.leaderless)
    assert restored.tickets == image.tickets
    assert restored.take_events() == []
    assert diff(image, restored) == []


def with_more_topics() -> Cluster:
    cluster = busy()
    for number in range(5):
        create = CreateTopic(f"more-{number}", TopicId(bytes([number]) * 16), ((BrokerId(0),),))
        assert cluster.apply(create) == Done()
    return cluster


def test_a_snapshot_in_slices_is_the_state_at_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.snapshot.encoder.PARTITIONS_PER_STEP", 1)
    cluster = with_more_topics()
    before = encode_snapshot(cluster.image)
    encoder = SnapshotEncoder(cluster.image)
    packed, steps = encoder.step(), 1
    while packed is None:
        cluster.apply(DeleteTopic(TopicId(bytes([steps % 5]) * 16)))
        cluster.apply(NoOp(), session=ClientSession(b"t" * 16, steps, 1))
        cluster.start(1)
        packed, steps = encoder.step(), steps + 1
    assert packed == before and steps > 5
    assert encode_snapshot(cluster.image) != before


def test_an_installed_snapshot_ends_the_one_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one begun before would be of an index that the log no longer has."""
    monkeypatch.setattr("metadata.snapshot.encoder.PARTITIONS_PER_STEP", 1)
    machine = StateMachine(lambda index, events: None)
    machine.image = with_more_topics().image
    machine.applied_index = machine.image.index
    assert machine.snapshot_step(begin=True) is None
    apply_at_once(machine, InstalledSnapshot(500, 1, encode_snapshot(machine.image)))
    assert machine.snapshot_step(begin=False) is None and machine.entries_since_snapshot == 0
    taken = None
    while taken is None:
        taken = machine.snapshot_step(begin=True)
    assert taken[1] == 500


def test_a_newer_version_is_distinguished_from_damage() -> None:
    packed = encode_snapshot(busy().image)
    with pytest.raises(UnknownSnapshot, match="upgraded"):
        decode_snapshot(packed[:4] + struct.pack(">I", VERSION + 1) + packed[8:])


@pytest.mark.parametrize("length", [0, 3, 11, 12, 40, -1])
def test_a_truncated_snapshot_is_refused(length: int) -> None:
    packed = encode_snapshot(busy().image)
    with pytest.raises(RemoteProtocolError):
        decode_snapshot(packed[:length])


def newest() -> Cluster:
    """A cluster whose snapshot is of the newest version."""
    cluster = busy()
    for number in range(3):
        cluster.do(cluster.registration(number, feature_level=FEATURE_LEVEL))
    cluster.do(SetFeatureLevel(FEATURE_LEVEL))
    return cluster


@pytest.mark.parametrize("made", [busy, newest])
@given(data=st.data())
def test_a_flipped_bit_is_detected(made: Callable[[], Cluster], data: st.DataObject) -> None:
    packed = bytearray(encode_snapshot(made().image))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(RemoteProtocolError):
        decode_snapshot(packed)
