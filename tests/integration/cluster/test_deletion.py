"""`delete-records` and compacted topics on a cluster of real processes, over a restart of all of it."""

from __future__ import annotations

import pytest

from raftlog import Admin, Producer
from raftlog.errors import InvalidRequest
from tests.support.clusters.cluster import running_cluster

pytestmark = pytest.mark.integration


async def test_deleted_records_stay_deleted_and_compacted_topics_need_keys() -> None:
    with running_cluster(3) as cluster:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic("t", 1, 3)
            await admin.create_topic("table", 1, 3, {"cleanup.policy": "compact"})
            async with Producer(cluster.bootstrap) as producer:
                for number in range(10):
                    await producer.send("t", b"v%d" % number)
                await producer.send("table", b"v", key=b"k")
                with pytest.raises(InvalidRequest) as refused:
                    await producer.send("table", b"v")
                assert refused.value.code == "invalid_record"
            (deleted,) = await admin.delete_records("t", {0: 7})
            assert deleted.log_start_offset == 7
            with pytest.raises(InvalidRequest) as beyond:
                await admin.delete_records("t", {0: 11})
            assert beyond.value.code == "offset_out_of_range"
        cluster.kill_all()
        cluster.start()
        cluster.wait_ready(60.0)
        async with Admin(cluster.bootstrap) as admin:
            held = await admin.offsets("t", 0)
            assert (held.earliest, held.latest) == (7, 10)
