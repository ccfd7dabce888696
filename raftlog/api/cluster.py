"""The cluster and its nodes: members, feature level, health."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from .base import Request


class NodeInfo(msgspec.Struct, frozen=True):
    """One node as the cluster knows it."""

    id: int
    api: str
    """`host:port` of its HTTP API."""
    data: str
    """`host:port` of its HTTP/2 data listener."""
    rack: str | None = None
    fenced: bool = False
    """Whether the broker is fenced: not alive as far as the controller knows."""
    incarnation: int = -1


class FirstPage(msgspec.Struct, frozen=True):
    """The answer at `/`."""

    name: str
    version: str
    cluster_id: str
    links: dict[str, str]
    """Path → what is there."""


class ClusterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster; `controller` is None while there is none."""

    cluster_id: str
    version: str = ""
    """The version of the node that answers."""
    feature_level: int = 0
    controller: int | None = None
    nodes: list[NodeInfo]


class FinalizeFeatureLevel(Request, frozen=True):
    level: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """None for the highest level that every node understands."""
    plan: bool = False
    """Change nothing and return the outcome."""


class FeatureLevelFinalized(msgspec.Struct, frozen=True):
    """The outcome of raising the cluster's feature level, or, if it is not `applied`, of the plan."""

    applied: bool
    feature_level_before: int
    feature_level: int


class RollCheck(msgspec.Struct, frozen=True):
    """Whether a node may be stopped now without loss of availability."""

    node: int
    safe: bool
    reasons: list[str]
    """The reasons against it, one line each; empty if it is safe."""


class EventLoop(msgspec.Struct, frozen=True):
    """The longest times that a callback blocked the node's event loop since the node started to take requests.
    Milliseconds of the wall clock, or of the processor time of the loop's own thread."""

    stalls: int
    """The number of callbacks that took 20 ms or more."""
    worst_ms: float
    worst_processor_ms: float
    stalls_last_minute: int
    worst_ms_last_minute: float


class Liveness(msgspec.Struct, frozen=True):
    """The answer of a node whose event loop runs, whatever the state of the cluster."""

    live: bool


class HealthInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node's report on itself and the cluster; `problems` has one line each, and is empty if all is well."""

    ready: bool
    """Whether the node is registered, unfenced and follows the metadata log, and so can take requests."""
    problems: list[str]
    event_loop: EventLoop | None = None
    """None if it is not measured."""
