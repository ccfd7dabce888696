"""No schedule loses a committed record (S1, S2, S6), and the search for such schedules can find them.

Random walks of a simple replication model around the real image. The second half removes one rule of the image and
expects the walks to find a lost record: a search that finds nothing must be shown to be able to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from metadata.image import brokers as image_brokers
from metadata.image import partitions as image_partitions
from metadata.image import reassignments as image_reassignments
from tests.support.metadata import cluster as metadata_cluster
from tests.support.metadata.moving import MovingWalk
from tests.support.metadata.replicas import LostRecord, Walk

STEPS = 600
MOVING_STEPS = 1_500


@pytest.mark.parametrize(("replicas", "minimum"), [(3, 2), (3, 1), (2, 2), (5, 3)])
def test_no_random_walk_loses_a_committed_record(replicas: int, minimum: int) -> None:
    committed = 0
    for seed in range(100):
        walk = Walk(seed, replicas=replicas, minimum=minimum)
        walk.run(STEPS)
        committed += len(walk.committed)
    assert committed > 50, "the walks must get somewhere"


@pytest.mark.parametrize("minimum", [2, 1])
def test_no_random_walk_of_a_partition_that_is_moved_loses_a_committed_record(minimum: int) -> None:
    committed = completed = replaced = 0
    for seed in range(25):
        walk = MovingWalk(seed, minimum=minimum)
        walk.run(MOVING_STEPS)
        committed, completed = committed + len(walk.committed), completed + walk.completed
        replaced += walk.replaced
    assert committed > 50 and completed > 3 and replaced > 3, "the walks must get somewhere"


def cut_replicas_stay(patch: pytest.MonkeyPatch) -> None:
    """Schedules 7 and 10: a registration with a truncated log marks no replica."""
    settle = image_brokers._settle_the_past

    def settle_all_clean(state: Any, broker: Any, directory: Any, topic_partitions: Any, reports: Any) -> None:
        clean = {tp: replace_report(report) for tp, report in reports.items()}
        settle(state, broker, directory, topic_partitions, clean)

    def replace_report(report: Any) -> Any:
        return type(report)(report.topic_id, report.partition, True, report.last_epoch, report.stable_end_offset, False)

    patch.setattr(image_brokers, "_settle_the_past", settle_all_clean)


def recovery_takes_the_first_back(patch: pytest.MonkeyPatch) -> None:
    """Schedule 9."""
    winners = image_partitions.recovery_winners
    patch.setattr(
        image_partitions,
        "recovery_winners",
        lambda record, *rest: winners(replace(record, min_insync_replicas=1), *rest),
    )


def any_replica_may_lead(patch: pytest.MonkeyPatch) -> None:
    """Unclean election."""
    patch.setattr(
        image_partitions, "electable", lambda record, brokers: [b for b in record.replicas if not brokers[b].fenced]
    )


def a_replica_comes_back_in_its_leader_epoch(patch: pytest.MonkeyPatch) -> None:
    """A replica that was removed and is added again is added as if its leader knew of both."""
    begin = image_reassignments._begin

    def forgetful(state: Any, move: Any) -> Any:
        record = state.partitions[move.topic_partition]
        state.partitions[move.topic_partition] = replace(record, let_go=False)
        return begin(state, move)

    patch.setattr(image_reassignments, "_begin", forgetful)


def whoever_was_added_may_be_let_go(patch: pytest.MonkeyPatch) -> None:
    """A cancelled or replaced move removes in-sync replicas, whichever remain."""
    patch.setattr(image_reassignments, "_cannot_let_go", lambda record, gone: None)


@pytest.mark.parametrize(
    ("plant", "first_seed"), [(a_replica_comes_back_in_its_leader_epoch, 160), (whoever_was_added_may_be_let_go, 40)]
)
def test_the_moving_walks_find_a_planted_bug(plant: Callable[[pytest.MonkeyPatch], None], first_seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata_cluster, "check", lambda image: None)
        patch.setattr(metadata_cluster, "check_step", lambda before, after: None)
        plant(patch)
        with pytest.raises(LostRecord):
            for seed in range(first_seed, 3_000):
                MovingWalk(seed).run(MOVING_STEPS)


PLANTED: list[Callable[[pytest.MonkeyPatch], None]] = [
    cut_replicas_stay,
    recovery_takes_the_first_back,
    any_replica_may_lead,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_the_walks_find_a_planted_bug(plant: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Only a lost record counts, not the image's own assertions.
        patch.setattr(metadata_cluster, "check", lambda image: None)
        patch.setattr(metadata_cluster, "check_step", lambda before, after: None)
        plant(patch)
        with pytest.raises(LostRecord):
            for seed in range(3_000):
                Walk(seed).run(STEPS)
