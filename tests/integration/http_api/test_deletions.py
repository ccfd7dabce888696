"""`POST /v1/topics/{topic}/delete-records` and `Admin.delete_records`, in front of a broker in memory."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import Admin
from raftlog.client import admin as admin_module
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import TopicPartition
from raftlog.records.batch import encode
from raftlog.wire import DeleteRecordsRequest, DeleteRecordsResponse
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Api

pytestmark = pytest.mark.integration

PATH = "/v1/topics/t/delete-records"


@pytest.fixture
async def broker() -> FakeBroker:
    made = FakeBroker()
    topic = made.add_topic("t", 2)
    for partition in (0, 1):
        log = made.logs[TopicPartition(topic.topic_id, partition)]
        for _ in range(3):
            log.append(encode([b"a", b"b"], base_timestamp_ms=0))
    return made


def starts(broker: FakeBroker) -> list[int]:
    return [log.log_start_offset for _, log in sorted(broker.logs.items())]


async def test_partitions_fare_by_themselves_and_a_failure_is_a_problem(api: Api, broker: FakeBroker) -> None:
    asked = {"partitions": [{"partition": 0, "before": 4}, {"partition": 1, "before": "latest"}]}
    answer = await api.post(PATH, asked)
    assert answer.status == 200
    assert answer.document == {
        "topic": "t",
        "partitions": [{"partition": 0, "log_start_offset": 4}, {"partition": 1, "log_start_offset": 6}],
    }
    assert starts(broker) == [4, 6]
    asked = {"partitions": [{"partition": 0, "before": 5}, {"partition": 1, "before": 7}]}
    failed = await api.post(PATH, asked)
    assert (failed.status, failed.document["code"], failed.document["applied"]) == (
        416,
        "offset_out_of_range",
        "unknown",
    )
    assert failed.document["partitions"][0] == {"partition": 0, "log_start_offset": 5}
    assert failed.document["partitions"][1]["error"]["code"] == "offset_out_of_range"


async def test_no_error_of_one_partition_says_that_nothing_went_in_another(api: Api, broker: FakeBroker) -> None:
    broker.partition_errors |= {0: "request_timed_out", 1: "offset_out_of_range"}
    asked = {"partitions": [{"partition": 0, "before": 1}, {"partition": 1, "before": 1}]}
    assert (await api.post(PATH, asked)).problem("offset_out_of_range")["applied"] == "unknown"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "invalid_request"),
        ({"partitions": []}, "invalid_request"),
        ({"partitions": [{"partition": 0, "before": -1}]}, "invalid_request"),
        ({"partitions": [{"partition": 0, "before": "earliest"}]}, "invalid_request"),
        ({"partitions": [{"partition": 0, "before": 1}], "plan": True}, "invalid_request"),
        ({"partitions": [{"partition": 0, "before": 1}, {"partition": 0, "before": 2}]}, "invalid_request"),
        ({"partitions": [{"partition": 0, "before": 1}, {"partition": 2, "before": 2}]}, "unknown_partition"),
    ],
)
async def test_bad_input_changes_nothing(api: Api, broker: FakeBroker, body: dict[str, object], code: str) -> None:
    """S11."""
    answer = await api.post(PATH, body)
    assert answer.document["code"] == code
    assert starts(broker) == [0, 0]


async def test_the_client(api: Api, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_module, "ANSWER_GRACE", 0.2)
    async with Admin(f"127.0.0.1:{api.port}") as admin:
        deleted = await admin.delete_records("t", {0: 2, 1: "latest"})
        assert [(one.partition, one.log_start_offset) for one in deleted] == [(0, 2), (1, 6)]
        assert (await admin.offsets("t", 0)).earliest == 2
        with pytest.raises(InvalidRequest) as refused:
            await admin.delete_records("t", {0: 7})
        assert refused.value.code == "offset_out_of_range"
        broker.fail["delete_records"] = RetriableError("not_enough_replicas", "too few")
        with pytest.raises(RaftlogError) as waiting:
            await admin.delete_records("t", {0: 3}, timeout=0.1)
        assert waiting.value.code == "not_enough_replicas"


async def test_the_clients_latest_is_that_of_its_call(api: Api, broker: FakeBroker) -> None:
    """A node that refuses for now is asked again, or another is, while records go on coming: those stay."""
    log = broker.logs[TopicPartition(broker.view.topics()[0].topic_id, 0)]
    attempts: list[int] = []
    delete = broker.delete_records

    async def later(request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        attempts.append(request.partitions[0].before)
        log.append(encode([b"late"], base_timestamp_ms=0))
        if len(attempts) < 3:
            raise RetriableError("overloaded", "not now")
        return await delete(request)

    broker.delete_records = later  # type: ignore[method-assign]
    async with Admin(f"127.0.0.1:{api.port}") as admin:
        (deleted,) = await admin.delete_records("t", {0: "latest"})
        assert (deleted.log_start_offset, attempts) == (6, [6, 6, 6])
        with pytest.raises(InvalidRequest) as refused:
            await admin.delete_records("t", {2: "latest"})
        assert refused.value.code == "unknown_partition"


async def test_offsets_of_a_deleted_topic_delete_nothing_in_its_successor(api: Api, broker: FakeBroker) -> None:
    """`latest` was asked of one topic, and the deletion comes when the name is another's."""
    old = broker.view.topics()[0].topic_id.hex()
    async with Admin(f"127.0.0.1:{api.port}") as admin:
        ask = admin._latest_offsets

        async def replaced_meanwhile(*asked: Any) -> Any:
            found = await ask(*asked)
            broker.create_again("t")
            broker.log("t").append(encode([b"x"] * 9, base_timestamp_ms=0))
            return found

        admin._latest_offsets = replaced_meanwhile  # type: ignore[method-assign]
        with pytest.raises(InvalidRequest) as refused:
            await admin.delete_records("t", {0: "latest"})
        admin._latest_offsets = ask  # type: ignore[method-assign]
        for before in ({0: 2}, {0: "latest"}):
            with pytest.raises(InvalidRequest) as gone:
                await admin.delete_records("t", before, topic_id=old)
            assert (refused.value.code, gone.value.code) == ("unknown_topic", "unknown_topic")
        with pytest.raises(InvalidRequest, match="was deleted"):
            await admin.offsets("t", 0, topic_id=old)
        with pytest.raises(InvalidRequest, match="was deleted"):
            await admin.delete_topic("t", topic_id=old)
        assert (await admin.offsets("t", 0)).earliest == 0
