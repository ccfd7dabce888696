"""Bugs of the producer state that partitions keep, and of the marking of resends.

In each, the resend of a producer that was forgotten, or never seen, is taken for a new batch: it is in the log twice
(S1).
"""

from __future__ import annotations

from typing import Any

from partitions.manager import PartitionManager
from partitions.producers.state import ProducerStates
from raftlog.client.producing.partition_queue import PartitionQueue

from .patches import CLUSTER, Patch, Planted, original

_chain_broken = original(PartitionQueue, "chain_broken")
_check = original(ProducerStates, "check")
_launch = original(PartitionQueue, "launch")
_produce = original(PartitionManager, "produce")
_restore = original(ProducerStates, "restore")


def _take_every_first_batch(states: Any, header: Any, *, resent: bool = False) -> Any:
    """Accept the first batch of an unknown producer, even a resend."""
    return _check(states, header)


def _forget_without_trace(states: Any) -> None:
    states._take(next(iter(states._entries)))


def _pass_on_without_mark(manager: Any, *arguments: Any, resent: bool = False, **options: Any) -> None:
    _produce(manager, *arguments, **options)


def _launch_unmarked(queue: Any) -> Any:
    batch = _launch(queue)
    batch.resent = False
    return batch


def _rename_whatever_was_sent(queue: Any, batch: Any, error: Any) -> Any:
    """Assume that a leader that forgot the producer has none of its batches."""
    if batch is queue.in_flight[0]:
        batch.maybe_applied = False
    return _chain_broken(queue, batch, error)


def _restore_without_horizon(states: Any, snapshot: Any) -> None:
    _restore(states, snapshot)
    states.forgotten_up_to = -1


PRODUCER_BUGS = (
    Planted(
        "producers_are_forgotten_for_room",
        "the least recent producer is evicted for new ones, without a trace",
        "ProducerStates refuses new producers, and an eviction raises the horizon",
        (
            Patch(ProducerStates, "_has_room", property(lambda states: True)),
            Patch(ProducerStates, "_forget_first", _forget_without_trace),
        ),
        found_by=CLUSTER,
    ),
    Planted(
        "expired_producers_leave_no_trace",
        "a producer's state expires, and a resend of its first batch is taken for a new batch",
        "ProducerStates._forget_first raises the horizon",
        (Patch(ProducerStates, "_forget_first", _forget_without_trace),),
        found_by=CLUSTER,
    ),
    Planted(
        "marks_are_not_looked_at",
        "a leader accepts the first batch of any unknown producer",
        "ProducerStates.check refuses a resend that it cannot judge",
        (Patch(ProducerStates, "check", _take_every_first_batch),),
        found_by=CLUSTER,
    ),
    Planted(
        "the_mark_is_lost_on_the_way",
        "the mark of a resend is dropped when the batch is passed on",
        "the mark is passed from the request to the leader's core",
        (Patch(PartitionManager, "produce", _pass_on_without_mark),),
        found_by=CLUSTER,
    ),
    Planted(
        "resends_are_not_marked",
        "a client does not mark its resends",
        "PartitionQueue.launch marks what may have been applied",
        (Patch(PartitionQueue, "launch", _launch_unmarked),),
        found_by=CLUSTER,
    ),
    Planted(
        "what_may_be_there_gets_another_name",
        "after a leader has forgotten a producer, the producer sends everything again under a new id",
        "PartitionQueue.chain_broken reports an unknown outcome for batches that may have been applied",
        (Patch(PartitionQueue, "chain_broken", _rename_whatever_was_sent),),
        found_by=CLUSTER,
    ),
    Planted(
        "the_horizon_is_not_in_snapshots",
        "after a restart a replica does not know that it has forgotten producers",
        "a snapshot holds the horizon",
        (Patch(ProducerStates, "restore", _restore_without_horizon),),
        found_by=CLUSTER,
    ),
    Planted(
        "a_copy_takes_everybody_for_new",
        "a replica that began in the middle of its leader's log accepts resends of earlier batches",
        "ProducerStates.greatest_id goes with start_at",
        (Patch(ProducerStates, "greatest_id", property(lambda states: -1)),),
        found_by=CLUSTER,
    ),
)
