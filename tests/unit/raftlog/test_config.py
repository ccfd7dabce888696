"""Settings: what is taken, and what is told to who wrote something else."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.config import (
    MAX_BATCH_BYTES,
    MAX_FETCH_BYTES,
    MAX_REQUEST_BYTES,
    MAX_TOPIC_NAME,
    MAX_WIRE_MESSAGE_BYTES,
    PUSH_MESSAGE_BYTES,
    TOPIC_CONFIG_NAMES,
    NodeConfig,
    TopicConfig,
    check_topic_name,
    load_node_config,
    majority,
    parse_topic_config,
)
from raftlog.errors import InvalidRequest


def test_bounds_fit_into_one_another() -> None:
    """One batch fits a push; the largest request and answer fit a message."""
    assert MAX_BATCH_BYTES < PUSH_MESSAGE_BYTES < MAX_WIRE_MESSAGE_BYTES
    assert max(MAX_REQUEST_BYTES, MAX_FETCH_BYTES) + MAX_BATCH_BYTES < MAX_WIRE_MESSAGE_BYTES


@pytest.mark.parametrize("name", ["a", "orders", "A.b_c-9", "...", "x" * MAX_TOPIC_NAME])
def test_topic_names_of_kafka_are_taken(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "größe", "a\n", "\0", "x" * (MAX_TOPIC_NAME + 1)])
def test_other_topic_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is not allowed: 1 to 249 of letters") as caught:
        check_topic_name(name)
    assert caught.value.code == "invalid_topic_name"


def test_a_majority_is_more_than_half() -> None:
    assert [majority(replicas) for replicas in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


# --- A topic's settings ----------------------------------------------------------------------------------------------


def test_topic_settings_have_kafka_s_names() -> None:
    parsed = parse_topic_config(
        {"retention.ms": "-1", "max.message.bytes": "1024", "flush": "os", "message.timestamp.type": "LogAppendTime"}
    )
    assert parsed == TopicConfig(
        retention_ms=-1, max_message_bytes=1024, flush="os", message_timestamp_type="LogAppendTime"
    )
    assert parse_topic_config({}) == TopicConfig()


def test_every_default_may_be_said() -> None:
    said = {name: str(getattr(TopicConfig(), attribute)) for name, attribute in TOPIC_CONFIG_NAMES.items()}
    assert len(said) == len(fields(TopicConfig))
    del said["min.insync.replicas"]  # 0 stands for a majority, and nobody writes it
    assert parse_topic_config(said) == TopicConfig()


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("retention", "1", "unknown topic setting 'retention'; known are cleanup.policy"),
        ("retention_ms", "1", "unknown topic setting"),
        ("x" * 1000, "1", f"unknown topic setting '{'x' * 64}'"),
        ("flush", "never", "flush must be fsync or os, not 'never'"),
        ("cleanup.policy", "compacted", "cleanup.policy must be delete or compact"),
        ("min.cleanable.dirty.ratio", "1.01", "min.cleanable.dirty.ratio must be between 0 and 1"),
        ("min.cleanable.dirty.ratio", "nan", "must be between 0 and 1"),
        ("retention.ms", "-2", "retention.ms must be between -1 and"),
        ("segment.bytes", "1023", "segment.bytes must be between 1024 and 2147483647, not 1023"),
        ("max.message.bytes", str(MAX_BATCH_BYTES + 1), "must be between 1024 and 1048576"),
        ("min.insync.replicas", "0", "must be between 1 and 32"),
        ("retention.ms", str(2**62 + 1), "must be between"),
        ("retention.ms", "9" * 5000, "must be a whole number"),
        ("retention.ms", "", "retention.ms must be a whole number, not ''"),
        ("retention.ms", "1.5", "must be a whole number"),
        ("retention.ms", "1_000", "must be a whole number"),
        ("retention.ms", " 5", "must be a whole number"),
        ("retention.ms", "+5", "must be a whole number"),
        ("retention.ms", "٣", "must be a whole number"),
        ("retention.ms", "5" + " " * 31 + "days", "must be a whole number"),
        ("retention.ms", "0" * 40 + "5", "must be a whole number"),
    ],
)
def test_other_topic_settings_are_refused(name: str, text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        parse_topic_config({name: text})
    assert caught.value.code == "invalid_config"
    assert len(caught.value.detail) < 500


@given(st.dictionaries(st.sampled_from(sorted(TOPIC_CONFIG_NAMES)) | st.text(), st.integers().map(str) | st.text()))
def test_any_topic_settings_are_taken_or_refused(configs: dict[str, str]) -> None:
    try:
        parse_topic_config(configs)
    except InvalidRequest as error:
        assert error.code == "invalid_config"


# --- A node's settings -----------------------------------------------------------------------------------------------


def test_an_empty_file_is_every_default() -> None:
    assert load_node_config("") == NodeConfig()


def test_a_file_says_what_differs() -> None:
    config = load_node_config(
        """
        rack = "a"
        data = {listen = {host = "0.0.0.0", port = 9641}, advertised = {host = "one.example", port = 9641}}
        [peers.2]
        data = {host = "127.0.0.1", port = 19661}
        [timing]
        broker_session_ms = 800
        """
    )
    assert (config.rack, config.data.listen.port, config.timing.broker_session_ms) == ("a", 9641, 800)
    assert config.data.advertised is not None and config.data.advertised.endpoint.host == "one.example"
    assert config.peers["2"].data.port == 19661


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rack = ", "node.toml: "),
        ("rack = 1", "`rack`|rack"),
        ("fsync_treads = 2", "fsync_treads"),
        ("fsync_threads = 0", r">= 1.*\$.fsync_threads"),
        ("worker_threads = 65", r"<= 64.*\$.worker_threads"),
        ("retention_check_ms = 0", r"\$.retention_check_ms"),
        ("metadata_snapshot_entries = 9", r"\$.metadata_snapshot_entries"),
        ("fetch_cache_bytes = -1", r"\$.fetch_cache_bytes"),
        ('data_folder = ""', r"\$.data_folder"),
        ('log_level = "loud"', r"\$.log_level"),
        ("api = {listen = {port = 65536}}", r"\$.api.listen.port"),
        ("api = {listen = {port = -1}}", r"\$.api.listen.port"),
        ('data = {advertised = {host = ""}}', r"\$.data.advertised.host"),
        ("peers = {one = {data = {port = 1}}}", r"\$.peers"),
        ("timing = {broker_heartbeat_ms = 0}", r"\$.timing.broker_heartbeat_ms"),
        ("timing = {produce_timeout_ms = -5}", r"\$.timing.produce_timeout_ms"),
        ("timing = {replica_lag_max_ms = 0}", r"\$.timing.replica_lag_max_ms"),
        ("timing = {quorum_heartbeat_ms = 150}", "must keep 2 . quorum_heartbeat_ms < election_timeout_min_ms"),
        ("timing = {election_timeout_max_ms = 300}", "must keep election_timeout_min_ms < election_timeout_max_ms"),
        ("timing = {broker_heartbeat_ms = 300}", "must keep 3 . broker_heartbeat_ms < broker_session_ms"),
        ("timing = {broker_session_ms = 901}", r"must keep election_timeout_max_ms \+ broker_session_ms <= 1500"),
        ("a = " + "[" * 5000, "node.toml: "),
    ],
)
def test_a_file_that_says_what_cannot_be_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        load_node_config(text)
    assert caught.value.code == "invalid_config" and caught.value.detail.startswith("node.toml: ")
