"""`raftlog topic` with the real HTTP API and a broker in memory behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raftlog.errors import RetriableError
from raftlog.model import TopicPartition
from raftlog.records.batch import encode
from tests.support.cli_runner import Background, Result, impatient, run
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Api, running_api


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def api(broker: FakeBroker) -> Iterator[Api]:
    with Background(running_api(broker)) as background:
        yield background.cluster


def topic(api: Api, *arguments: str, stdin: bytes = b"") -> Result:
    return run("topic", *arguments, bootstrap=f"127.0.0.1:{api.port}", stdin=stdin)


class TestCreate:
    def test_partitions_and_settings(self, api: Api, broker: FakeBroker) -> None:
        result = topic(api, "create", "t", "--partitions", "3", "--config", "retention.ms=1000", "--config", "flush=os")
        assert (result.code, result.text, result.stderr) == (0, "Created topic t.\n", "")
        made = broker.view.topic("t")
        assert made is not None
        assert made.partition_count == 3
        assert dict(made.configs) == {"retention.ms": "1000", "flush": "os"}

    def test_data_formats_show_the_topic(self, api: Api) -> None:
        created = topic(api, "create", "t", "-o", "json")
        assert created.json["name"] == "t" and len(created.json["partitions"]) == 1
        assert topic(api, "describe", "t", "-o", "json").json == [created.json]

    def test_an_existing_topic_is_an_error_unless_it_is_accepted(self, api: Api, broker: FakeBroker) -> None:
        broker.add_topic("t", 2)
        refused = topic(api, "create", "t")
        assert refused.code == 1
        assert refused.stderr == "Error: topic 't' exists\n"
        welcome = topic(api, "create", "t", "--if-not-exists")
        assert (welcome.code, welcome.text) == (0, "Topic t exists.\n")
        other = topic(api, "create", "t!", "--if-not-exists")
        assert other.code == 1

    @pytest.mark.parametrize("setting", ["retention.ms", "=5", ""])
    def test_a_setting_needs_a_name_and_a_value(self, api: Api, setting: str) -> None:
        result = topic(api, "create", "t", "--config", setting)
        assert result.code == 2 and "NAME=VALUE" in result.stderr

    def test_the_same_setting_twice_is_a_usage_error(self, api: Api) -> None:
        assert topic(api, "create", "t", "--config", "flush=os", "--config", "flush=fsync").code == 2

    def test_an_unknown_setting_is_the_callers_error(self, api: Api) -> None:
        result = topic(api, "create", "t", "--config", "retention=5")
        assert result.code == 1
        assert "unknown topic setting 'retention'" in result.stderr
        assert "retry" not in result.stderr

    def test_a_retriable_error_says_so(self, api: Api, broker: FakeBroker) -> None:
        broker.fail["create_topic"] = RetriableError("outcome_unknown", "the quorum did not answer")
        result = topic(api, "create", "t")
        assert result.code == 1
        assert result.stderr == "Error: the quorum did not answer (a retry may succeed)\n"


class TestShow:
    def test_list(self, api: Api, broker: FakeBroker) -> None:
        broker.add_topic("b", 12)
        made = broker.add_topic("a", 1)
        listed = topic(api, "list")
        assert listed.lines == [
            "Topic  PartitionCount  ReplicationFactor",
            "a      1               1",
            "b      12              1",
        ]
        wide = topic(api, "list", "-o", "wide").table("Topic")
        assert wide[0][-1] == "TopicId" and wide[1] == ["a", "1", "1", made.topic_id.hex()]
        assert [entry["name"] for entry in topic(api, "list", "-o", "json").json] == ["a", "b"]
        assert topic(api, "list", "-o", "yaml").yaml == topic(api, "list", "-o", "json").json

    def test_an_empty_list_is_a_header(self, api: Api) -> None:
        assert topic(api, "list").lines == ["Topic  PartitionCount  ReplicationFactor"]
        assert topic(api, "describe").lines == []

    def test_describe_has_kafkas_columns(self, api: Api, broker: FakeBroker) -> None:
        made = broker.add_topic("t", 2, {"retention.ms": "1000"})
        broker.set_leader("t", 1, -1)
        lines = topic(api, "describe", "t").lines
        assert [line.split() for line in lines[:5]] == [
            ["Topic:", "t"],
            ["TopicId:", made.topic_id.hex()],
            ["PartitionCount:", "2"],
            ["ReplicationFactor:", "1"],
            ["Configs:", "retention.ms=1000"],
        ]
        assert [line.split() for line in lines[5:]] == [
            ["Topic", "Partition", "Leader", "Replicas", "Isr"],
            ["t", "0", "1", "1", "1"],
            ["t", "1", "none", "1", "1"],
        ]

    def test_wide_has_epochs_and_every_setting(self, api: Api, broker: FakeBroker) -> None:
        broker.add_topic("t", 1)
        wide = topic(api, "describe", "t", "-o", "wide")
        assert "retention.ms=604800000" in wide.text
        header, row = wide.table("Topic")
        shown = dict(zip(header, row, strict=True))
        assert shown["LeaderEpoch"] == "3" and shown["PartitionEpoch"] == "5" and shown["NotEligible"] == "-"

    def test_several_or_all_topics(self, api: Api, broker: FakeBroker) -> None:
        for name in ("c", "a", "b"):
            broker.add_topic(name)
        asked = topic(api, "describe", "b", "a", "b", "-o", "json").json
        assert [description["name"] for description in asked] == ["b", "a"]
        assert [d["name"] for d in topic(api, "describe", "-o", "yaml").yaml] == ["a", "b", "c"]

    def test_an_unknown_topic_is_an_error(self, api: Api) -> None:
        result = topic(api, "describe", "nobody")
        assert result.code == 1 and "nobody" in result.stderr and result.stdout == b""


class TestDelete:
    def test_it_asks_for_confirmation(self, api: Api, broker: FakeBroker) -> None:
        broker.add_topic("t")
        refused = topic(api, "delete", "t", stdin=b"n\n")
        assert refused.code == 1 and "Error: nothing was changed: the answer was no" in refused.stderr
        assert "Delete t with all records?" in refused.stderr
        silent = topic(api, "delete", "t")
        assert silent.code == 1 and "standard input has no answer to the question; --yes skips it" in silent.stderr
        assert broker.view.topic("t") is not None
        assert topic(api, "delete", "t", stdin=b"y\n").text == "Deleted topic t.\n"
        assert broker.view.topic("t") is None

    def test_yes_skips_the_confirmation(self, api: Api, broker: FakeBroker) -> None:
        broker.add_topic("a")
        broker.add_topic("b")
        result = topic(api, "delete", "a", "b", "a", "--yes")
        assert (result.code, result.text, result.stderr) == (0, "Deleted topic a.\nDeleted topic b.\n", "")

    def test_deletions_before_a_failure_are_reported(self, api: Api, broker: FakeBroker) -> None:
        broker.add_topic("a")
        broker.add_topic("c")
        result = topic(api, "delete", "a", "b", "c", "--yes")
        assert result.code == 1
        assert result.text == "Deleted topic a.\n"
        assert "'b'" in result.stderr
        again = topic(api, "delete", "a", "b", "c", "--yes", "--if-exists")
        assert again.code == 0
        assert again.lines == ["There is no topic a.", "There is no topic b.", "Deleted topic c."]


class TestAlter:
    def test_settings_and_partitions(self, api: Api, broker: FakeBroker) -> None:
        broker.add_topic("t", 1, {"retention.ms": "1000", "segment.ms": "50"})
        result = topic(
            api, "alter", "t", "--set", "flush=os", "--set", "segment.ms=60", "--unset", "retention.ms",
            "--partitions", "3",
        )  # fmt: skip
        assert result.code == 0
        assert result.lines[0] == "Altered topic t."
        assert "flush=os" in result.text and "segment.ms=60" in result.text and "retention.ms" not in result.text
        changed = broker.view.topic("t")
        assert changed is not None
        assert changed.partition_count == 3
        assert dict(changed.configs) == {"flush": "os", "segment.ms": "60"}

    def test_only_the_requested_settings_change(self, api: Api, broker: FakeBroker) -> None:
        broker.add_topic("t", 1, {"flush": "os"})
        assert topic(api, "alter", "t", "--partitions", "2", "-o", "json").json["partition_count"] == 2
        assert topic(api, "alter", "t", "--unset", "flush", "-o", "json").json["overrides"] == []

    @pytest.mark.parametrize("arguments", [[], ["--set", "a=1", "--unset", "a"], ["--partitions", "0"]])
    def test_contradictory_options_are_a_usage_error(self, api: Api, arguments: list[str]) -> None:
        assert topic(api, "alter", "t", *arguments).code == 2

    def test_fewer_partitions_are_refused(self, api: Api, broker: FakeBroker) -> None:
        broker.add_topic("t", 3)
        result = topic(api, "alter", "t", "--partitions", "2")
        assert result.code == 1 and result.stderr.startswith("Error: ")


def test_an_unreachable_cluster_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    result = run("topic", "list", bootstrap="127.0.0.1:1")
    assert result.code == 1
    assert result.stderr.startswith("Error: cannot connect to 127.0.0.1:1")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("bootstrap", ["nonsense", "", "host:port", "host:99999"])
def test_an_invalid_address_is_reported_in_one_line(bootstrap: str) -> None:
    result = run("topic", "list", bootstrap=bootstrap)
    assert result.code == 1
    assert "address" in result.stderr and result.stderr.count("\n") == 1


class TestDeleteRecords:
    def filled(self, broker: FakeBroker) -> None:
        made = broker.add_topic("t", 2)
        for partition in (0, 1):
            log = broker.logs[TopicPartition(made.topic_id, partition)]
            for _ in range(3):
                log.append(encode([b"a", b"b"], base_timestamp_ms=0))

    def test_a_plan_deletes_nothing(self, api: Api, broker: FakeBroker) -> None:
        self.filled(broker)
        plan = topic(api, "delete-records", "t", "--before", "0=4", "--before", "1=latest", "--plan")
        assert plan.code == 0
        assert [line.split() for line in plan.lines] == [
            ["Topic", "Partition", "LogStartOffset", "Before", "HighWatermark", "Offsets"],
            ["t", "0", "0", "4", "6", "4"],
            ["t", "1", "0", "6", "6", "6"],
        ]
        assert {log.log_start_offset for log in broker.logs.values()} == {0}

    def test_it_asks_first_and_shows_the_new_log_starts(self, api: Api, broker: FakeBroker) -> None:
        self.filled(broker)
        asked = topic(api, "delete-records", "t", "--before", "0=4", stdin=b"n\n")
        assert asked.code == 1 and "Delete 4 offsets of topic t" in asked.stderr
        assert {log.log_start_offset for log in broker.logs.values()} == {0}
        done = topic(api, "delete-records", "t", "--before", "0=4", "--before", "1=latest", "--yes", "-o", "json")
        assert done.json == [{"partition": 0, "log_start_offset": 4}, {"partition": 1, "log_start_offset": 6}]

    @pytest.mark.parametrize("bound", ["0", "=4", "0=-1", "0=earliest", "x=4"])
    def test_invalid_bounds_are_a_usage_error(self, api: Api, bound: str) -> None:
        assert topic(api, "delete-records", "t", "--before", bound, "--yes").code == 2

    def test_beyond_the_high_watermark_both_numbers_are_shown(self, api: Api, broker: FakeBroker) -> None:
        self.filled(broker)
        refused = topic(api, "delete-records", "t", "--before", "1=7", "--yes")
        assert refused.code == 1 and "[0, 6]" in refused.stderr
        assert topic(api, "delete-records", "t", "--before", "9=7", "--yes").code == 1
