"""The blocking `Admin`: it runs each method of the asyncio one (`raftlog/client/admin.py`) to its end."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from raftlog.client.admin import Admin as AsyncAdmin

from .loop_thread import LoopThread, blocking


class Admin:
    """Administers a cluster, from any thread.

    `close` it, or use it with `with`.
    """

    def __init__(self, bootstrap: str | Sequence[str]) -> None:
        """`bootstrap`: API addresses, `"host:port,host:port"`."""
        self._wrapped = AsyncAdmin(bootstrap)
        self._thread = LoopThread(self, "admin")

    create_topic = blocking(AsyncAdmin.create_topic)
    list_topics = blocking(AsyncAdmin.list_topics)
    describe_topic = blocking(AsyncAdmin.describe_topic)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    alter_topic = blocking(AsyncAdmin.alter_topic)
    add_partitions = blocking(AsyncAdmin.add_partitions)
    delete_records = blocking(AsyncAdmin.delete_records)

    cluster = blocking(AsyncAdmin.cluster)
    quorum = blocking(AsyncAdmin.quorum)
    add_voter = blocking(AsyncAdmin.add_voter)
    remove_voter = blocking(AsyncAdmin.remove_voter)
    health = blocking(AsyncAdmin.health)

    list_reassignments = blocking(AsyncAdmin.list_reassignments)
    alter_reassignments = blocking(AsyncAdmin.alter_reassignments)
    throttle = blocking(AsyncAdmin.throttle)
    plan_moves = blocking(AsyncAdmin.plan_moves)
    elect_leaders = blocking(AsyncAdmin.elect_leaders)
    elect_unclean = blocking(AsyncAdmin.elect_unclean)
    unregister_broker = blocking(AsyncAdmin.unregister_broker)
    replicas = blocking(AsyncAdmin.replicas)

    list_groups = blocking(AsyncAdmin.list_groups)
    describe_group = blocking(AsyncAdmin.describe_group)
    group_offsets = blocking(AsyncAdmin.group_offsets)
    seek_group = blocking(AsyncAdmin.seek_group)
    seek_group_as_planned = blocking(AsyncAdmin.seek_group_as_planned)
    delete_group = blocking(AsyncAdmin.delete_group)

    list_transactions = blocking(AsyncAdmin.list_transactions)
    describe_transaction = blocking(AsyncAdmin.describe_transaction)
    abort_transaction = blocking(AsyncAdmin.abort_transaction)
    position = blocking(AsyncAdmin.position)
    list_positions = blocking(AsyncAdmin.list_positions)
    delete_position = blocking(AsyncAdmin.delete_position)

    offsets = blocking(AsyncAdmin.offsets)
    offset_for_timestamp = blocking(AsyncAdmin.offset_for_timestamp)

    def close(self) -> None:
        """Close all connections. Closing twice is allowed."""
        if not self._thread.closed:
            self._thread.run(self._wrapped.close)
            self._thread.stop()

    def __enter__(self) -> Admin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
