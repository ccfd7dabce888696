"""Settings of topics: list, describe, set, reset."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import Literal

import msgspec
from aiohttp import web

from http_api.routes.topics import METADATA_TIMEOUT_S
from http_api.web.bodies import read_json
from http_api.web.call import Call
from http_api.web.topics import topic_of
from raftlog.config import TOPIC_CONFIG_NAMES, parse_topic_config
from raftlog.errors import InvalidRequest
from raftlog.model import TopicRecord

from .resources import Addresses, Metadata, check_cluster, reply, reply_list


class SetConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request to set one setting; null resets it."""

    value: str | None


class ConfigChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of one setting."""

    name: str
    value: str | None = None
    operation: Literal["SET", "DELETE"] = "SET"


class AlterConfigs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request to change several settings, all or none."""

    data: list[ConfigChange]
    validate_only: bool = False


class ConfigResource(msgspec.Struct, frozen=True):
    """A setting of a topic."""

    kind: str
    metadata: Metadata
    cluster_id: str
    topic_name: str
    name: str
    value: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    source: str
    """`DYNAMIC_TOPIC_CONFIG`, or `DEFAULT_CONFIG`."""
    synonyms: list[msgspec.Raw]


async def list_configs(call: Call) -> web.StreamResponse:
    """List the settings of a topic."""
    check_cluster(call)
    topic = topic_of(call)
    path = ("topics", topic.name, "configs")
    resources = [_config(call, Addresses(call), topic, name) for name in TOPIC_CONFIG_NAMES]
    return await reply_list(call, "KafkaTopicConfigList", path, resources, attrgetter("name"), lambda one: one)


async def describe_config(call: Call) -> web.StreamResponse:
    """Describe a setting of a topic."""
    check_cluster(call)
    return await reply(call, _config(call, Addresses(call), topic_of(call), _name(call)))


async def set_config(call: Call) -> web.StreamResponse:
    """Set a setting of a topic."""
    check_cluster(call)
    topic, name = topic_of(call), _name(call)
    asked = await read_json(call, SetConfig)
    return await _change(call, topic, [ConfigChange(name, asked.value, "SET" if asked.value is not None else "DELETE")])


async def reset_config(call: Call) -> web.StreamResponse:
    """Reset a setting of a topic to its default."""
    check_cluster(call)
    return await _change(call, topic_of(call), [ConfigChange(_name(call), None, "DELETE")])


async def alter_configs(call: Call) -> web.StreamResponse:
    """Change several settings of a topic, all or none."""
    check_cluster(call)
    topic = topic_of(call)
    asked = await read_json(call, AlterConfigs)
    return await _change(call, topic, asked.data, validate_only=asked.validate_only)


async def _change(
    call: Call, topic: TopicRecord, changes: Sequence[ConfigChange], *, validate_only: bool = False
) -> web.StreamResponse:
    assign = {one.name: one.value for one in changes if one.operation == "SET" and one.value is not None}
    remove = [one.name for one in changes if one.operation == "DELETE" or one.value is None]
    if len({*assign, *remove}) < len(changes):
        raise InvalidRequest("invalid_config", "a setting is given twice")
    parse_topic_config(assign)
    for name in remove:
        _check_known(name)
    if not validate_only:
        change = partial(call.service.topics.alter, topic.name, assign, remove)
        await call.context.finish(change(), METADATA_TIMEOUT_S)
    return web.Response(status=204)


def _name(call: Call) -> str:
    return _check_known(call.segment("config"))


def _check_known(name: str) -> str:
    if name not in TOPIC_CONFIG_NAMES:
        raise InvalidRequest("not_found", f"topics have no setting {name[:64]!r}")
    return name


def _config(call: Call, to: Addresses, topic: TopicRecord, name: str) -> ConfigResource:
    config = call.view.topic_config(topic.topic_id)
    assert config is not None, "the view has a topic without its settings"
    value = getattr(config, TOPIC_CONFIG_NAMES[name])
    is_default = name not in dict(topic.configs)
    return ConfigResource(
        "KafkaTopicConfig",
        to.metadata("topics", topic.name, "configs", name),
        to.cluster_id,
        topic.name,
        name,
        str(value).lower() if isinstance(value, bool) else str(value),
        is_default,
        False,
        False,
        "DEFAULT_CONFIG" if is_default else "DYNAMIC_TOPIC_CONFIG",
        [],
    )
