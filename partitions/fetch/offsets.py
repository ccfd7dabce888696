"""The offsets of one partition by position or by time, for consumers: never beyond what they may read (S3, S13).

A search by time reads and unpacks batches, so a worker does it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from partitions.driver.driver import PartitionDriver
from raftlog.errors import NotLeader, RaftlogError
from raftlog.model import Offset, TopicPartition
from raftlog.ports import Worker
from raftlog.wire import TIMESTAMP_EARLIEST, TIMESTAMP_LATEST, FoundOffset


def not_found(topic_partition: TopicPartition, error: RaftlogError) -> FoundOffset:
    """Return the answer for an error."""
    leader = error.leader if isinstance(error, NotLeader) else -1
    return FoundOffset(topic_partition.topic_id, topic_partition.partition, error.code, error.detail, leader=leader)


def search_offset(
    driver: PartitionDriver,
    timestamp_ms: int,
    worker: Worker,
    done: Callable[[FoundOffset], None],
    *,
    isolation: int = 0,
) -> None:
    """Find an offset (`PartitionManager.find_offset`). `done` may be called before this returns."""
    tp = driver.topic_partition

    def answer(offset: int, timestamp: int = -1) -> None:
        done(FoundOffset(tp.topic_id, tp.partition, "", "", offset, timestamp, driver.leader_epoch))

    def found(result: tuple[Offset, int] | None, error: BaseException | None) -> None:
        if error is not None:
            done(not_found(tp, driver.on_load_failed(error)))
        else:
            answer(*(result or (-1, -1)))

    then: Callable[[], None]
    try:
        end_offset = driver.reads.readable_end()
        if isolation:
            end_offset = driver.reads.last_stable_offset(end_offset)
        if timestamp_ms == TIMESTAMP_LATEST:
            then = partial(answer, end_offset)
        elif timestamp_ms == TIMESTAMP_EARLIEST:
            then = partial(answer, driver.log.log_start_offset)
        else:
            then = partial(worker.submit, driver.log.timestamp_search(timestamp_ms, end_offset).run, found)
    except RaftlogError as error:
        done(not_found(tp, error))
        return
    except Exception as error:  # noqa: BLE001  judged as one that a worker met
        found(None, error)
        return
    then()
