"""Settings: checked when they are made, and the same whether they come as keywords or as an object."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import raftlog.sync
from raftlog.client import Consumer, GroupConsumer, Producer, producer
from raftlog.client.cluster.api import HttpApi
from raftlog.client.producing.sender import Sender, SendingPolicy
from raftlog.client.settings import ConsumerSettings, GroupConsumerSettings, ProducerSettings, Settings
from raftlog.errors import InvalidRequest
from raftlog.model import Acks
from raftlog.records.batch import Codec


@pytest.mark.parametrize(
    ("made", "keywords", "told"),
    [
        (ProducerSettings, {"acks": 2}, "acks must be all, 1 or 0, not 2"),
        (ProducerSettings, {"compression": "zip"}, "compression must be one of none, gzip, snappy, lz4, zstd"),
        (ProducerSettings, {"linger_ms": -1}, "linger_ms must be a number between 0 and 60000, not -1"),
        (ProducerSettings, {"linger_ms": "5"}, "linger_ms must be a number between 0 and 60000, not '5'"),
        (ProducerSettings, {"batch_bytes": 1.5}, "batch_bytes must be a whole number between 1024 and 1048576"),
        (ProducerSettings, {"max_in_flight": 0}, "max_in_flight must be a whole number between 1 and 64, not 0"),
        (ProducerSettings, {"acks": 1, "idempotent": True}, "an idempotent producer needs acks=all"),
        (ProducerSettings, {"acks": 1, "transactional_id": "t"}, "transactions need acks=all"),
        (ProducerSettings, {"transactional_id": ""}, "transactional_id must have 1 to 512 printable characters"),
        (ConsumerSettings, {"isolation": "serializable"}, "isolation must be one of read_committed, read_uncommitted"),
        (ConsumerSettings, {"max_wait_ms": 0}, "max_wait_ms must be a whole number between 1 and 60000, not 0"),
        (ConsumerSettings, {"on_out_of_range": "hope"}, "on_out_of_range must be one of error, earliest, latest"),
        (GroupConsumerSettings, {"auto_offset_reset": "hope"}, "auto_offset_reset must be one of earliest"),
        (GroupConsumerSettings, {"heartbeat_interval_ms": 45_000}, "must be shorter than session_timeout_ms"),
        (GroupConsumerSettings, {"max_poll_interval_ms": 0}, "max_poll_interval_ms must be a number between"),
    ],
)  # fmt: skip
def test_a_bad_setting_is_refused_by_name(made: type[Settings], keywords: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        made(**keywords)
    assert error.value.code == "invalid_config" and told in error.value.detail


def test_what_settings_mean_inside() -> None:
    default = ProducerSettings()
    assert (default.level, default.is_idempotent, default.codec) == (Acks.ALL, True, Codec.NONE)
    assert (default.linger, default.delivery_timeout) == (0.005, 120.0)
    leader = ProducerSettings(acks=1, compression="zstd")
    assert (leader.level, leader.is_idempotent, leader.codec) == (Acks.LEADER, False, Codec.ZSTD)
    assert [ConsumerSettings(isolation=f"read_{one}").isolation_level for one in ("uncommitted", "committed")] == [0, 1]


@pytest.mark.parametrize("library", [raftlog.client, raftlog.sync])
async def test_keywords_replace_fields_of_given_settings(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[ProducerSettings] = []

    class Used(Sender):
        def __init__(self, api: HttpApi, settings: ProducerSettings, policy: SendingPolicy) -> None:
            super().__init__(api, settings, policy)
            used.append(settings)

    monkeypatch.setattr(producer, "Sender", Used)
    given = ProducerSettings(linger_ms=7, acks=1)
    for made in (
        library.Producer("localhost:1", linger_ms=7, acks=1),
        library.Producer("localhost:1", settings=given),
        library.Producer(bootstrap="localhost:1", settings=ProducerSettings(linger_ms=3, acks=1), linger_ms=7),
    ):
        if library is raftlog.sync:
            with made:
                pass
        else:
            async with made:
                pass
    assert used == [given] * 3
    with pytest.raises(TypeError, match="linger"):
        library.Producer("localhost:1", linger=7)
    with pytest.raises(InvalidRequest, match="linger_ms"):
        library.Producer("localhost:1", linger_ms=-7)


@pytest.mark.parametrize(
    ("constructor", "settings"),
    [(Producer, ProducerSettings), (Consumer, ConsumerSettings), (GroupConsumer, GroupConsumerSettings)],
)
def test_signatures_show_every_setting_and_its_default(constructor: Any, settings: type[Settings]) -> None:
    shown = inspect.signature(constructor).parameters
    for name, field in inspect.signature(settings).parameters.items():
        assert (shown[name].kind, shown[name].default) == (inspect.Parameter.KEYWORD_ONLY, field.default)
