"""What a client knows of the cluster: its nodes, and who leads which partition of the topics it uses.

The knowledge is a picture that may be old; a broker that no longer leads says so, and then the picture is drawn anew.
It never goes back, since a node that is cut off from the quorum answers from an old view: of two answers about one
partition the one with the higher leader epoch counts, and of two topics of one name, the one that was created later,
whichever came last. (Which that is can be told from feature level 5 on; of two topics that were created before, the
last answer counts.)

The structs here are also what `Admin` returns: fields that a newer cluster adds are ignored.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

import msgspec

from raftlog.config import MAX_BATCH_BYTES
from raftlog.errors import InvalidRequest, RaftlogError, RemoteProtocolError, RetriableError
from raftlog.model import Endpoint

from .api import HttpApi, parse_endpoint

CONCURRENT_REQUESTS = 8

TOPIC_ID = re.compile("[0-9a-f]{32}", re.IGNORECASE)


class NodeInfo(msgspec.Struct, frozen=True):
    """One node, as the cluster knows it."""

    id: int
    api: str
    """`host:port` of its HTTP API."""
    data: str
    """`host:port` of its HTTP/2 data listener."""
    rack: str | None = None
    fenced: bool = False
    """Alive nodes are not fenced."""
    incarnation: int = -1


class ClusterInfo(msgspec.Struct, frozen=True):
    """The cluster. `controller` is None while there is none."""

    cluster_id: str
    nodes: list[NodeInfo]
    version: str = ""
    feature_level: int = 0
    controller: int | None = None


class PartitionInfo(msgspec.Struct, frozen=True):
    """One partition. `leader` is None while there is none."""

    partition: int
    leader: int | None = None
    leader_epoch: int = -1
    partition_epoch: int = -1
    replicas: list[int] = []
    isr: list[int] = []
    commit_set: list[int] = []
    not_eligible: list[int] = []
    min_insync_replicas: int = 0
    adding_replicas: list[int] = []
    """Those of `replicas` that a reassignment added."""
    removing_replicas: list[int] = []
    """Those of `replicas` that go when it is complete."""
    unclean_leader_epochs: list[int] = []
    """Leader epochs that an operator began although records may have been lost."""


class TopicDescription(msgspec.Struct, frozen=True):
    """One topic with its partitions, in their order."""

    name: str
    id: str
    """32 hexadecimal digits."""
    partition_count: int
    replication_factor: int
    partitions: list[PartitionInfo]
    configs: dict[str, str] = {}
    """All settings in effect."""
    overrides: list[str] | None = None
    """Names of those that are set on this topic."""
    created_index: int = 0
    """Of two topics of one name, the one that was created later has the greater. 0: it was created below feature
    level 5, or is described by a node that does not know."""

    def is_older_than(self, other: TopicDescription) -> bool:
        """A topic of the same name, deleted before that one was created."""
        return self.id != other.id and self.created_index < other.created_index

    @property
    def id_bytes(self) -> bytes:
        return bytes.fromhex(self.id)

    @property
    def max_message_bytes(self) -> int:
        """Largest batch that the topic takes."""
        try:
            return min(int(self.configs.get("max.message.bytes", MAX_BATCH_BYTES)), MAX_BATCH_BYTES)
        except ValueError:
            return MAX_BATCH_BYTES


def topic_path(topic: str, topic_id: str = "", *, below: str = "") -> str:
    """Of a topic in the API, or of something below it; with the id of the topic that is meant, or known, where there
    is one."""
    return f"/v1/topics/{quote(topic, safe='')}{below}{f'?topic_id={quote(topic_id)}' if topic_id else ''}"


def check_partition(topic: str, partition: int, count: int) -> None:
    """Raises `InvalidRequest` (`unknown_partition`) for one that the topic does not have."""
    if not 0 <= partition < count:
        raise no_partition(topic, partition, count)


def no_partition(topic: str, partition: int, count: int) -> InvalidRequest:
    """`unknown_partition`: the topic does not have this one."""
    return InvalidRequest("unknown_partition", f"topic {topic} has the partitions 0 to {count - 1}, not {partition}")


class ClusterMetadata:
    """The picture. `refresh` draws it; the rest reads it."""

    def __init__(self, api: HttpApi, meant: Mapping[str, str] | None = None) -> None:
        """`meant`: ids of topics, by name, that the caller knows from elsewhere."""
        self._api = api
        self._meant = dict(meant or {})
        self.cluster_id: str | None = None
        self.nodes: dict[int, NodeInfo] = {}
        self._data_endpoints: dict[int, Endpoint] = {}
        self.topics: dict[str, TopicDescription] = {}

    async def refresh(
        self, topics: Iterable[str], *, timeout: float = 5.0
    ) -> dict[str, TopicDescription | RaftlogError]:
        """Ask for nodes and these topics. Returns what is known of each topic now, or the error of asking for it
        (`metadata_behind` where a node describes one that was deleted: then another node is asked next); raises a
        `RaftlogError` where not even the nodes could be learned."""
        limit = asyncio.Semaphore(CONCURRENT_REQUESTS)

        async def ask(topic: str) -> TopicDescription | RaftlogError:
            async with limit:
                try:
                    return await self._api.get(self._path(topic), TopicDescription, timeout=timeout)
                except RaftlogError as error:
                    return error

        names = list(topics)
        cluster, answers = await asyncio.gather(
            self._api.get("/v1/cluster", ClusterInfo, timeout=timeout), asyncio.gather(*map(ask, names))
        )
        self._learn(cluster)
        known = {name: self._topic_answered(name, answer) for name, answer in zip(names, answers, strict=True)}
        if any(isinstance(answer, RaftlogError) and answer.code == "metadata_behind" for answer in known.values()):
            self._api.prefer_another()
        return known

    def _path(self, topic: str) -> str:
        """With the topic that is known by this name: a node that knows another one makes sure which is the present."""
        known = self.topics.get(topic)
        return topic_path(topic, self._meant.get(topic, "") if known is None else known.id)

    def data_endpoint(self, node_id: int) -> Endpoint | None:
        """Where a node takes produce and fetch streams; None for one that is not known."""
        return self._data_endpoints.get(node_id)

    def leader(self, topic: str, partition: int) -> tuple[int, int]:
        """Broker id and leader epoch; -1 for what is not known."""
        description = self.topics.get(topic)
        if description is None or partition >= len(description.partitions):
            return -1, -1
        known = description.partitions[partition]
        return -1 if known.leader is None else known.leader, known.leader_epoch

    def _learn(self, cluster: ClusterInfo) -> None:
        if self.cluster_id is None:
            self.cluster_id = cluster.cluster_id
        elif cluster.cluster_id != self.cluster_id:
            raise RemoteProtocolError(
                f"the bootstrap addresses lead to two clusters, {self.cluster_id} and {cluster.cluster_id}"
            )
        try:
            self._data_endpoints = {node.id: parse_endpoint(node.data) for node in cluster.nodes}
            self._api.learn([parse_endpoint(node.api) for node in cluster.nodes])
        except InvalidRequest as error:
            raise RemoteProtocolError(f"the cluster names a node's address wrongly: {error.detail}") from None
        self.nodes = {node.id: node for node in cluster.nodes}

    def _topic_answered(self, name: str, answer: TopicDescription | RaftlogError) -> TopicDescription | RaftlogError:
        if isinstance(answer, RaftlogError):
            return answer
        if [info.partition for info in answer.partitions] != list(range(answer.partition_count)):
            return RemoteProtocolError(f"the description of topic {name} does not list its partitions in order")
        if not TOPIC_ID.fullmatch(answer.id):
            return RemoteProtocolError(f"the id of topic {name} is not one: {answer.id!r}")
        known = self.topics.get(name)
        if known is not None and answer.is_older_than(known):
            what = f"a node describes the topic {name} that was deleted before the present one was created"
            return RetriableError("metadata_behind", what)
        if known is not None and known.id == answer.id:
            answer = self._newest(known, answer)
        self.topics[name] = answer
        return answer

    @staticmethod
    def _newest(known: TopicDescription, answer: TopicDescription) -> TopicDescription:
        """Partition by partition, whichever is further."""
        pairs = zip(known.partitions, answer.partitions, strict=False)
        merged = [
            old if (old.leader_epoch, old.partition_epoch) > (new.leader_epoch, new.partition_epoch) else new
            for old, new in pairs
        ]
        longer = max((known.partitions, answer.partitions), key=len)
        partitions = merged + longer[len(merged) :]
        created = max(known.created_index, answer.created_index)
        return msgspec.structs.replace(
            answer, partitions=partitions, partition_count=len(partitions), created_index=created
        )
