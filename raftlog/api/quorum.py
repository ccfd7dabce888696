"""The metadata quorum: its state, and its voters."""

from __future__ import annotations

from typing import Literal

import msgspec

from .base import NodeNumber, Request


class QuorumInfo(msgspec.Struct, frozen=True):
    """The metadata quorum as one of its nodes sees it."""

    node_id: int
    leader: int
    """Node id of the leader; -1 if there is none."""
    term: int
    commit_index: int
    applied_index: int
    last_index: int
    voters: list[int]
    match_index: dict[str, int] = {}
    """Index up to which each voter's and connected observer's log matches; only the leader knows it."""
    forgetful: list[int] = []
    """Nodes whose disks lost acknowledged entries: they do not take part and must be replaced."""
    next_producer_id: int | None = None
    """The first producer id that was not granted yet, as far as this node knows."""


class ChangeVoters(Request, frozen=True):
    action: Literal["add", "remove"]
    node: NodeNumber
    plan: bool = False
    """Change nothing and return the outcome."""


class VotersChange(msgspec.Struct, frozen=True):
    """A change of the quorum's voters: made or, if it is not `applied`, planned."""

    applied: bool
    voters_before: list[int]
    voters: list[int]
    failures_survived_before: int
    failures_survived: int
    """Number of voters that may fail at the same time."""
    index: int | None = None
    """Metadata index of the change; None if there was nothing to change."""
