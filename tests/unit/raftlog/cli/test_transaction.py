"""`raftlog transaction` with the real HTTP API and a broker in memory behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from http_api.service.transactions import OpenTransaction
from metadata.view import BrokerChanged, FeatureLevelChanged
from raftlog.api.transactions import TransactionPartition
from raftlog.client import Admin, TransactionInfo
from raftlog.client.admin import _merged
from raftlog.client.cluster.api import HttpApi
from raftlog.client.transactions.api import TransactionApi
from raftlog.errors import InvalidRequest
from raftlog.model import Endpoint, Offset, ProducerEpoch, ProducerId, TopicPartition
from raftlog.transactions import Outcome, TransactionKey
from raftlog.version import FEATURE_LEVEL
from tests.support.cli_runner import Background, Result, run
from tests.support.client.fake_broker import NODE, FakeBroker
from tests.support.http.api_client import Api, running_api
from tests.support.metadata.transactions import commit


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    made.add_topic("t", 2)
    return made


@pytest.fixture
def api(broker: FakeBroker) -> Iterator[Api]:
    with Background(running_api(broker)) as background:
        me = broker.view.broker(NODE)
        assert me is not None
        here = BrokerChanged(replace(me, api=Endpoint("127.0.0.1", background.cluster.port)))

        async def register() -> None:
            broker._event(here)

        background.call(register())
        yield background.cluster


def transaction(api: Api, *arguments: str, stdin: bytes = b"") -> Result:
    return run("transaction", *arguments, bootstrap=f"127.0.0.1:{api.port}", stdin=stdin)


def begin(api: Api, broker: FakeBroker, name: str = "app") -> TransactionKey:
    """A named producer with records in `t-1`, for four seconds."""

    async def work() -> TransactionKey:
        http = HttpApi(f"127.0.0.1:{api.port}")
        try:
            return await TransactionApi(http).initialize(name, 60_000, bytes(15) + b"1", None, timeout=5)
        finally:
            await http.close()

    key = asyncio.run(work())
    place = TopicPartition(broker.view.topics()[0].topic_id, 1)
    broker.transactions.open_now = [OpenTransaction(key, place, Offset(7), api.context.clock_ms() - 4_000)]
    return key


class TestShow:
    def test_list(self, api: Api, broker: FakeBroker) -> None:
        header = ["TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState"]
        assert transaction(api, "list").table("TransactionalId") == [header]
        key = begin(api, broker)
        _, row = transaction(api, "list").table("TransactionalId")
        assert row == ["app", str(key.producer_id), "0", "Ongoing"]
        wide = transaction(api, "list", "-o", "wide").table("TransactionalId")
        known = dict(zip(*wide, strict=True))
        assert (known["TransactionTimeoutMs"], known["TopicPartitions"]) == ("60000", "t-1")
        assert int(known["TransactionDurationMs"]) >= 4_000
        assert transaction(api, "list", "-o", "json").json["transactions"][0]["partitions"][0]["first_offset"] == 7

    def test_list_by_partition(self, api: Api, broker: FakeBroker) -> None:
        begin(api, broker)
        assert len(transaction(api, "list", "--partition", "t/1").table("TransactionalId")) == 2
        assert len(transaction(api, "list", "--partition", "t/0").table("TransactionalId")) == 1
        both = transaction(api, "list", "--partition", "t/0", "--partition", "t/1", "-o", "json")
        assert [one["transactional_id"] for one in both.json["transactions"]] == ["app"]
        assert transaction(api, "list", "--partition", "t").code == 2

    def test_a_node_that_does_not_answer_is_named(
        self, api: Api, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        me = broker.view.broker(NODE)
        assert me is not None
        broker._event(BrokerChanged(replace(me, broker_id=NODE + 1, api=Endpoint("127.0.0.1", 1))))  # type: ignore[arg-type]
        monkeypatch.setattr("raftlog.client.transactions.api.READ_TIMEOUT", 0.3)
        result = transaction(api, "list")
        assert result.code == 10 and result.stderr.endswith("are missing: 2\n")

    def test_describe_has_kafkas_columns(self, api: Api, broker: FakeBroker) -> None:
        key = begin(api, broker)
        for which in (["app"], ["--producer-id", str(key.producer_id)]):
            header, row = transaction(api, "describe", *which).table("CoordinatorId")
            assert header == [
                "CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState",
                "TransactionTimeoutMs", "CurrentTransactionStartTimeMs", "TransactionDurationMs", "TopicPartitions",
            ]  # fmt: skip
            assert row[1:6] == ["app", str(key.producer_id), "0", "Ongoing", "60000"] and row[-1] == "t-1"

    def test_an_unknown_transaction_is_the_callers_error(self, api: Api) -> None:
        result = transaction(api, "describe", "nobody")
        assert (result.code, result.stderr) == (1, "Error: there is no transactional id 'nobody'\n")
        assert transaction(api, "describe", "--producer-id", "77").code == 1
        assert transaction(api, "describe").code == 2
        assert transaction(api, "describe", "app", "--producer-id", "1").code == 2


class TestAbort:
    def test_a_plan_changes_nothing(self, api: Api, broker: FakeBroker) -> None:
        begin(api, broker)
        assert transaction(api, "abort", "app", "--plan").table("CoordinatorId")[1][4] == "Ongoing"
        assert transaction(api, "describe", "app").table("CoordinatorId")[1][4] == "Ongoing"

    def test_it_asks_for_confirmation_and_aborts(self, api: Api, broker: FakeBroker) -> None:
        key = begin(api, broker)
        assert transaction(api, "abort", "app", stdin=b"n\n").code != 0
        assert transaction(api, "describe", "app").table("CoordinatorId")[1][4] == "Ongoing"
        done = transaction(api, "abort", "--producer-id", str(key.producer_id), "--yes")
        assert (done.code, done.text) == (0, f"Aborted the transaction of producer {key.producer_id} in epoch 0.\n")
        assert transaction(api, "list").table("TransactionalId")[1][3] == "PrepareAbort"
        again = transaction(api, "abort", "--producer-id", str(key.producer_id), "--yes")
        assert (again.code, "PrepareAbort" in again.stderr) == (1, True)

    def test_one_that_the_quorum_does_not_know_is_listed_and_aborted(self, api: Api, broker: FakeBroker) -> None:
        """A stranger's batch, in the name of an id that was never granted, blocks readers like any other."""
        begin(api, broker)
        broker._event(FeatureLevelChanged(FEATURE_LEVEL))  # type: ignore[arg-type]
        stranger = TransactionKey(ProducerId(broker.view.transactions.granted_below + 5), ProducerEpoch(0))
        place = TopicPartition(broker.view.topics()[0].topic_id, 0)
        broker.transactions.open_now.append(OpenTransaction(stranger, place, Offset(3)))
        listed = transaction(api, "list", "--partition", "t/0").table("TransactionalId")[1]
        assert listed == ["-", str(stranger.producer_id), "0", "Ongoing"]
        done = transaction(api, "abort", "--producer-id", str(stranger.producer_id), "--yes")
        assert done.code == 0, done.stderr
        assert broker.view.transactions.verdict(stranger, place).outcome is Outcome.ABORTED
        assert transaction(api, "list", "--partition", "t/0").table("TransactionalId")[1][3] == "PrepareAbort"


def test_several_nodes_answers_about_one_transaction_are_merged() -> None:
    def told(state: str, *places: tuple[int, int | None], started: int | None = None) -> TransactionInfo:
        found = [TransactionPartition("t", "", number, first) for number, first in places]
        lasts = None if started is None else 100 - started
        return TransactionInfo("a", 5, 0, state, 60_000, started, lasts, found)

    (one,) = _merged(
        [told("Empty"), told("Ongoing", (1, None), (0, 3), started=40), told("Ongoing", (1, 8), started=30)]
    )
    assert (one.state, one.started_ms, one.duration_ms) == ("Ongoing", 30, 70)
    assert [(place.partition, place.first_offset) for place in one.partitions] == [(0, 3), (1, 8)]
    assert _merged([told("Ongoing", (0, 1)), told("PrepareCommit")])[0].state == "PrepareCommit"


async def test_positions_are_shown(broker: FakeBroker) -> None:
    async with running_api(broker) as running, Admin(f"127.0.0.1:{running.port}") as admin:
        assert await admin.position("spark/q/1") is None


class TestPositions:
    @pytest.fixture(autouse=True)
    def moved(self, broker: FakeBroker) -> None:
        broker.transactions.change(commit(positions={"report/7": (-1, 3), "report/8": (-1, 0), "sink": (-1, 5)}))

    def test_positions_are_listed_by_name(self, api: Api) -> None:
        header, *rows = transaction(api, "positions", "report/").table("Position")
        assert (header, rows) == (["Position", "Value"], [["report/7", "3"], ["report/8", "0"]])
        listed = transaction(api, "positions", "-o", "json").json
        assert [one["name"] for one in listed["positions"]] == ["report/7", "report/8", "sink"] and not listed["more"]

    def test_a_truncated_list_says_so(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("http_api.routes.transactions.MAX_POSITIONS", 2)
        result = transaction(api, "positions")
        assert len(result.table("Position")) == 3 and "longer PREFIX" in result.stderr

    def test_a_plan_changes_nothing_and_a_deletion_asks_for_confirmation(self, api: Api) -> None:
        assert transaction(api, "delete-position", "report/7", "--plan").table("Position")[1] == ["report/7", "3"]
        assert transaction(api, "delete-position", "report/7", stdin=b"n\n").code != 0
        assert len(transaction(api, "positions").table("Position")) == 4
        done = transaction(api, "delete-position", "report/7", "--yes")
        assert (done.code, done.text) == (0, "Deleted position report/7, which was at 3.\n")
        assert [row[0] for row in transaction(api, "positions").table("Position")[1:]] == ["report/8", "sink"]
        again = transaction(api, "delete-position", "report/7", "--yes")
        assert (again.code, again.stderr) == (1, "Error: there is no position 'report/7'\n")

    async def test_it_is_deleted_if_it_is_at_the_expected_value(self, broker: FakeBroker) -> None:
        async with running_api(broker) as running, Admin(f"127.0.0.1:{running.port}") as admin:
            with pytest.raises(InvalidRequest) as moved:
                await admin.delete_position("sink", 4)
            assert moved.value.code == "offset_moved" and await admin.position("sink") == 5
            for _ in range(2):
                await admin.delete_position("sink", 5)
            assert await admin.position("sink") is None
