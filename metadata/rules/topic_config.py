"""A topic's settings, from text by Kafka's names (as the quorum holds them) to typed values with nothing left open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from raftlog.config import TopicConfig, majority, parse_topic_config
from raftlog.errors import InvalidRequest


def minimum_for(configs: Mapping[str, str], replica_count: int) -> int:
    """Return `min.insync.replicas` for this number of replicas: the configured value, or else a majority.

    The configured value may exceed the number of replicas: code that changes either must refuse that.
    """
    return parse_topic_config(configs).min_insync_replicas or majority(replica_count)


def settled_config(configs: Mapping[str, str], replication_factor: int) -> TopicConfig:
    """Return typed settings with `min_insync_replicas` settled: a majority of the replicas unless it is set.

    Raises `InvalidRequest` naming the invalid setting.
    """
    config = parse_topic_config(configs)
    minimum = config.min_insync_replicas or majority(replication_factor)
    if minimum > replication_factor:
        raise InvalidRequest(
            "invalid_config", f"min.insync.replicas {minimum} is more than the {replication_factor} replicas"
        )
    return replace(config, min_insync_replicas=minimum)
