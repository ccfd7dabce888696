"""The driver's decision over the output of its tasks: all of it becomes visible, or nothing (S13).

A micro-batch is committed together with its position, which advances to the micro-batch's number. Spark repeats a
micro-batch until it has recorded its completion; the second attempt finds the position already advanced and publishes
nothing. An advanced position is a success: the micro-batch is published exactly once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from raftlog.client.cluster.api import HttpApi
from raftlog.client.transactions.api import TransactionApi
from raftlog.client.transactions.transaction import commit_together
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError, error_from_code
from spark_source.connections import security_of

from .claims import position_of
from .names import IDS_PER_BLOCK, MicroBatch, blocks_between
from .options import SinkOptions
from .publication import Publication

logger = logging.getLogger("raftlog.spark")

RETIRE_TIMEOUT_S = 10.0
LOOK_BACK = 4 * IDS_PER_BLOCK
"""The number range searched for attempts of a failed driver; attempts outside it wait for their timeout."""
REMEMBERED_QUERIES = 1_000
_published: dict[str, str] = {}
"""A query's position → the last run of which this process has published a micro-batch."""
_TOO_LATE = frozenset({"transaction_aborted", "producer_ids_expired"})


async def publish(api: HttpApi, options: SinkOptions, wanted: Publication) -> bool:
    """Commit the publication, and wait until it is visible. Returns False if it was published before. Raises a
    `RaftlogError`; unless that is `outcome_unknown`, nothing becomes visible."""
    work, blocks, positions = wanted.work, wanted.blocks, {}
    if isinstance(work, MicroBatch):
        blocks = await _with_those_left_behind(api, work, blocks)
        current = await position_of(TransactionApi(api), work.position)
        if current >= work.batch_id:
            logger.warning("%s is at %d: micro-batch %d was published before", work.position, current, work.batch_id)
            await retire(api, blocks)
            return False
        positions[work.position] = (current, work.batch_id)
    first, *others = blocks or ("",)
    published = await _commit(options, wanted, positions, first)
    await retire(api, others)
    if isinstance(work, MicroBatch):
        _remember(work)
    return published


async def _with_those_left_behind(api: HttpApi, work: MicroBatch, blocks: tuple[str, ...]) -> tuple[str, ...]:
    """Add the blocks of a failed driver to the first micro-batch of a run: its attempts have the preceding numbers, and
    delay readers until they are aborted."""
    if _published.get(work.position) == work.run:
        return blocks
    claimed = await position_of(TransactionApi(api), work.attempts)
    before = blocks_between(work.work, range(max(0, claimed + 1 - LOOK_BACK), claimed + 1))
    return tuple(dict.fromkeys((*blocks, *before)))


def _remember(work: MicroBatch) -> None:
    if len(_published) >= REMEMBERED_QUERIES:
        _published.clear()
    _published[work.position] = work.run


async def _commit(options: SinkOptions, wanted: Publication, positions: dict[str, tuple[int, int]], block: str) -> bool:
    if not (wanted.outputs or positions or block):
        return True
    try:
        await commit_together(
            wanted.outputs,
            positions=positions,
            block=block,
            wait="visible",
            timeout=options.request_timeout_ms / 1000,
            bootstrap=options.cluster.bootstrap,
            **security_of(options.cluster),
        )
    except InvalidRequest as error:
        if error.code == "position_taken":
            logger.warning("%s: another run of this query was faster", error)
            return False
        raise _explained(error, options) from error
    except RetriableError as error:
        if error.code != "request_timed_out":
            raise
        # It is committed; a partition without a leader makes it visible once it has one.
        logger.warning("%s", error)
    return True


async def retire(api: HttpApi, blocks: Sequence[str]) -> None:
    """Abort every undecided transaction in these blocks now. If the cluster does not answer, their timeout aborts
    them."""
    for block in blocks:
        try:
            await TransactionApi(api).retire_block(block, timeout=RETIRE_TIMEOUT_S)
        except RaftlogError as error:
            logger.warning(
                "transactions of block %s stay open until their timeout, because retiring it failed: %s", block, error
            )
            return


def _explained(error: InvalidRequest, options: SinkOptions) -> RaftlogError:
    if error.code in _TOO_LATE:
        seconds = options.transaction_timeout_ms / 1000
        told = (
            f"{error.detail}. Nothing of this is written. Either writing took longer than {seconds:g} s: raise "
            "transactionTimeoutMs, or make micro-batches smaller (maxOffsetsPerTrigger). Or another run of this query "
            "aborted the same micro-batch: run the query only once"
        )
        return error_from_code(error.code, told)
    if error.code == "offset_moved":
        return error_from_code(error.code, f"{error.detail}: another run of this query is writing at the same time")
    return error
