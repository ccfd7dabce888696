"""Where a member of a group begins in partitions that it was just given."""

from __future__ import annotations

from typing import cast

from raftlog.api.groups import GroupPartition
from raftlog.client.cluster.api import HttpApi
from raftlog.client.groups.starts import find_starts
from raftlog.errors import InvalidRequest
from raftlog.wire import FoundOffset, OffsetsRequest, OffsetsResponse, decode_request, encode


async def test_what_was_deleted_since_it_was_assigned_has_no_start() -> None:
    """S10: the other partitions are read; an error would end a member that the group is about to help."""
    kept, gone = GroupPartition("kept", 0, "11" * 16), GroupPartition("gone", 0, "22" * 16)

    class Calls:
        async def repeatable(self, method: str, path: str, *, raw: bytes, **_: object) -> bytes:
            request, _ = decode_request(memoryview(raw))
            assert isinstance(request, OffsetsRequest)
            (query,) = request.partitions
            if query.topic_id.hex() == gone.topic_id:
                raise InvalidRequest("unknown_topic", "there is no topic with this id")
            found = FoundOffset(query.topic_id, query.partition, "", "", 7)
            return b"".join(map(bytes, encode(OffsetsResponse(0, [found]))))

    calls = cast(HttpApi, Calls())
    assert await find_starts(calls, [gone, kept], {}, "earliest") == {kept: 7}
