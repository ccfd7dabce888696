"""The broker's port for explanations. `raftlog/broker/explain/gathering.py` implements it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from metadata.view import GroupRecord
from raftlog.api.explain import AccessDecision, Explanation
from raftlog.api.timeline import ClusterChange
from raftlog.model import TopicPartition
from raftlog.security.principals import Caller


class ExplainService(Protocol):
    """Explanations from this node's view and the answers of others, which are asked in the caller's name, for at most a
    few seconds. `access` is explained as well."""

    async def partition(
        self,
        topic_partition: TopicPartition,
        offset: int | None,
        caller: Caller | None,
        access: Sequence[AccessDecision] = (),
    ) -> Explanation:
        """Explain a partition, and where the record at `offset` lies. Raises `InvalidRequest` (`unknown_partition`)."""
        ...

    async def group(
        self,
        group: GroupRecord,
        caller: Caller,
        describable: Callable[[str], bool],
        access: Sequence[AccessDecision] = (),
    ) -> Explanation:
        """Explain a consumer group, without topics that are not `describable`."""
        ...

    async def transaction(self, transactional_id: str, caller: Caller | None) -> Explanation:
        """Explain the transaction of a named producer. Raises `InvalidRequest` (`unknown_transaction`)."""
        ...

    def changes(self) -> Iterator[ClusterChange]:
        """Return the changes that this node remembers of topics that exist, of nodes and of the quorum's leader, the
        newest first. The caller reads as many as it needs."""
        ...
