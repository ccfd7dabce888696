"""What a reader does when a leader gives it an error instead of batches. A pure core.

Most errors pass: the reader rests a while and asks again, perhaps somebody else. One that says that the partition is
not known may come from a node that is behind: whether the topic is gone is for its description to say, which is asked
for each time (`fetcher.py`). One that says that the position is not in the log counts only once all that was fetched
ahead is handed out, and if the bounds that come with it say so, too.

What is *not* here: resting, and asking for metadata again (`fetcher.py`).
"""

from __future__ import annotations

import logging

from raftlog.errors import CODES, InvalidRequest, RaftlogError, error_from_code

from .fetch_channel import Answer
from .reader import PartitionReader

SETTLED_BY_DESCRIPTION = ("unknown_topic", "unknown_partition")

logger = logging.getLogger("raftlog.client")


def take_refusal(reader: PartitionReader, answer: Answer, on_out_of_range: str) -> RaftlogError:
    """The error that this answer has. Where reading cannot go on it is the reader's, too; `on_out_of_range` other than
    `"error"` is where to go on instead."""
    error = error_from_code(answer.error, answer.detail, answer.leader)
    if error.code == "offset_out_of_range":
        _out_of_range(reader, answer, on_out_of_range)
    elif error.code not in SETTLED_BY_DESCRIPTION and not CODES[error.code].retriable:
        reader.error = error
    return error


def _out_of_range(reader: PartitionReader, answer: Answer, otherwise: str) -> None:
    start, end = answer.log_start_offset, answer.high_watermark
    if start <= reader.fetch_offset <= end:
        return  # the broker has caught up since
    if reader.position < reader.fetch_offset:
        return  # first what was fetched; the question is asked again
    detail = f"{reader.topic}/{reader.partition}: offset {reader.fetch_offset} is not between {start} and {end}"
    if otherwise == "error":
        reader.error = InvalidRequest("offset_out_of_range", detail)
    else:
        logger.warning("%s; going on at the %s", detail, otherwise)
        reader.seek(otherwise)
