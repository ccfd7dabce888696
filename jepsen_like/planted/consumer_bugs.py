"""Bugs of HTTP consumers: in the positions of their owner, in the quorum's decisions, and in what a node knows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from http_api.rest_proxy.v2.consumer_reads import Reading
from http_api.routes.offsets import OFFSETS_TIMEOUT_S
from metadata.commands.instances import ClaimInstance
from metadata.image import groups as image_groups
from metadata.image import instances as image
from metadata.view import InstanceRecord
from raftlog.broker.instances.instances import HttpInstances
from raftlog.broker.instances.owner import InstanceOwner, Owned
from raftlog.broker.instances.positions import Position, Positions
from raftlog.errors import RaftlogError
from raftlog.model import TopicPartition

from .patches import CONSUMERS, Patch, Planted, original

_claim = original(image, "_claim")
_begin = original(InstanceOwner, "_begin")
_not_its_own = original(image_groups, "refuse_if_not_owner")


async def _settles_what_was_written(self: Any) -> None:
    """Take an answer for delivered once it was given to the socket (schedule V5a)."""
    settled = self._call.service.instances.settle(self.lease, self.ends if self.written else {})
    with contextlib.suppress(RaftlogError):
        await self._call.context.finish(settled, OFFSETS_TIMEOUT_S)


async def _begins_without_a_commit(self: Any, owned: Owned, unknown: Mapping[TopicPartition, int]) -> None:
    """Begin at the end of a partition without committing that end: the next owner begins at a later one."""
    groups, self._groups = self._groups, _NoCommits()
    try:
        await _begin(self, owned, unknown)
    finally:
        self._groups = groups


class _NoCommits:
    """Groups that answer every commit without making it."""

    def commit(self, request: Any, answer: Any, **more: Any) -> None:
        answer(0)


def _everything_is_delivered(self: Any) -> dict[TopicPartition, Position]:
    """An empty commit commits the positions, whether anything was delivered since the consumer got them or not."""
    return {tp: Position(one.offset, one.granted, delivered=True) for tp, one in self._positions.items()}


def _keeps_positions(self: Any, grants: Mapping[TopicPartition, int]) -> None:
    """A partition that was lost and granted again continues where this owner was."""
    remembered: dict[TopicPartition, Position] = self.__dict__.setdefault("remembered", {})
    remembered.update(self._positions)
    self._grants, self._positions = dict(grants), {}
    for partition, granted in grants.items():
        if partition in remembered:
            remembered[partition].granted = granted
            self._positions[partition] = remembered[partition]


async def _finds_in_its_own_view(self: Any, group_id: str, name: str) -> InstanceRecord:
    """Say that there is no such consumer, because this node does not know it yet."""
    return self._known(group_id, name)  # type: ignore[no-any-return]


def _claims_in_the_same_epoch(state: Any, claim: ClaimInstance, index: int) -> Any:
    """Make a broker the owner without a new epoch."""
    return _claim(state, claim, claim.epoch)


CONSUMER_BUGS = (
    Planted(
        "written_counts_as_delivered",
        "an answer that was cut is not sent again, and an empty commit passes its records",
        "Reading.settle: only an answer whose last byte was acknowledged is confirmed",
        (Patch(Reading, "settle", _settles_what_was_written),),
        CONSUMERS,
    ),
    Planted(
        "a_beginning_at_the_end_is_not_committed",
        "after the death of its owner a consumer skips what was written since it began",
        "InstanceOwner._begin: a beginning at the end of a partition is committed first",
        (Patch(InstanceOwner, "_begin", _begins_without_a_commit),),
        CONSUMERS,
    ),
    Planted(
        "empty_commit_without_delivery",
        "a program that took a consumer over commits by an empty body what it never got",
        "Position.delivered: there is something to commit only after a delivery under the same grant",
        (Patch(Positions, "present", property(_everything_is_delivered)),),
        CONSUMERS,
    ),
    Planted(
        "positions_outlive_their_grant",
        "a partition that comes back is read from where this owner was, and not from where the group is",
        "Positions.grant: positions of other grants are dropped",
        (Patch(Positions, "grant", _keeps_positions),),
        CONSUMERS,
    ),
    Planted(
        "a_stale_node_misses_a_consumer",
        "404 for a consumer that was made at another node a moment before",
        "HttpInstances.find: a node catches up with the quorum before it says that there is no such consumer",
        (Patch(HttpInstances, "find", _finds_in_its_own_view),),
        CONSUMERS,
    ),
    Planted(
        "taken_over_in_the_same_epoch",
        "two nodes own one consumer in one epoch, each with positions of its own",
        "_claim: every owner has an epoch of its own",
        (Patch(image, "_claim", _claims_in_the_same_epoch),),
        CONSUMERS,
    ),
)
