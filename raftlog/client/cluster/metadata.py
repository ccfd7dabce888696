"""A client's view of the cluster: its nodes, and the leaders of the partitions that the client uses.

The view may be stale; a broker that no longer leads says so, and then the view is refreshed. It never goes back,
although a node that is cut off from the quorum answers from a stale view: of two answers about one partition, the one
with the higher leader epoch counts, and of two topics with the same name, the one created later, whichever answer came
last. (The order of creation is known from feature level 5 on; of two topics created before that, the last answer
counts.)
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from urllib.parse import quote

import msgspec

from raftlog.api.cluster import ClusterInfo, NodeInfo
from raftlog.api.topics import TopicDescription
from raftlog.errors import InvalidRequest, RaftlogError, RemoteProtocolError, RetriableError
from raftlog.model import Endpoint

from .api import HttpApi, parse_endpoint

CONCURRENT_REQUESTS = 8

TOPIC_ID = re.compile("[0-9a-f]{32}", re.IGNORECASE)


def topic_path(topic: str, topic_id: str = "", *, below: str = "") -> str:
    """Return the API path of a topic or of a resource below it, with the topic's id if it is known."""
    return f"/v1/topics/{quote(topic, safe='')}{below}{f'?topic_id={quote(topic_id)}' if topic_id else ''}"


def check_partition(topic: str, partition: int, count: int) -> None:
    """Raise `InvalidRequest` (`unknown_partition`) if the topic does not have this partition."""
    if not 0 <= partition < count:
        raise no_partition(topic, partition, count)


def no_partition(topic: str, partition: int, count: int) -> InvalidRequest:
    """Return the error for a partition that the topic does not have."""
    return InvalidRequest("unknown_partition", f"topic {topic} has the partitions 0 to {count - 1}, not {partition}")


class ClusterMetadata:
    """A client's view of the cluster.

    `refresh` updates it; the other methods read it.
    """

    def __init__(self, api: HttpApi, meant: Mapping[str, str] | None = None) -> None:
        """`meant`: topic ids by name, known to the caller from elsewhere."""
        self._api = api
        self._meant = dict(meant or {})
        self.cluster_id: str | None = None
        self.nodes: dict[int, NodeInfo] = {}
        self._data_endpoints: dict[int, Endpoint] = {}
        self.topics: dict[str, TopicDescription] = {}

    async def refresh(
        self, topics: Iterable[str], *, timeout: float = 5.0
    ) -> dict[str, TopicDescription | RaftlogError]:
        """Refresh the nodes and these topics.

        Returns each topic's present description, or the error of the request for it (`metadata_behind` if a node
        describes a deleted topic; then another node is asked next). Raises a `RaftlogError` if not even the nodes could
        be read.
        """
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
        """Return the topic's path with its known id.

        A node that knows another topic of this name then makes sure which one exists now.
        """
        known = self.topics.get(topic)
        return topic_path(topic, self._meant.get(topic, "") if known is None else known.id)

    def data_endpoint(self, node_id: int) -> Endpoint | None:
        """Return the address of a node's data listener; None if the node is not known."""
        return self._data_endpoints.get(node_id)

    def leader(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the leader's broker id and epoch; -1 for what is not known."""
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
                f"the bootstrap addresses belong to two clusters, {self.cluster_id} and {cluster.cluster_id}"
            )
        try:
            self._data_endpoints = {node.id: parse_endpoint(node.data) for node in cluster.nodes}
            self._api.learn([parse_endpoint(node.api) for node in cluster.nodes])
        except InvalidRequest as error:
            raise RemoteProtocolError(f"the cluster returned an invalid node address: {error.detail}") from None
        self.nodes = {node.id: node for node in cluster.nodes}

    def _topic_answered(self, name: str, answer: TopicDescription | RaftlogError) -> TopicDescription | RaftlogError:
        if isinstance(answer, RaftlogError):
            return answer
        if [info.partition for info in answer.partitions] != list(range(answer.partition_count)):
            return RemoteProtocolError(f"the description of topic {name} does not list its partitions in order")
        if not TOPIC_ID.fullmatch(answer.id):
            return RemoteProtocolError(f"the id of topic {name} is invalid: {answer.id!r}")
        known = self.topics.get(name)
        if known is not None and answer.is_older_than(known):
            what = f"a stale node describes a former topic {name}, which was deleted before the present one was created"
            return RetriableError("metadata_behind", what)
        if known is not None and known.id == answer.id:
            answer = self._newest(known, answer)
        self.topics[name] = answer
        return answer

    @staticmethod
    def _newest(known: TopicDescription, answer: TopicDescription) -> TopicDescription:
        """Merge the descriptions: of each partition, the one with the higher epochs."""
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
