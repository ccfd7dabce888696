"""Requests that were written for other REST proxies, sent unchanged to a node: transcripts of curl (`transcripts/`)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from raftlog import Admin
from tests.support.clusters.cluster import running_cluster
from tests.support.http.transcripts import examples_of, fits, replayed

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("curl") is None, reason="the requests are sent by curl"),
]

FOLDER = Path(__file__).parent / "transcripts"


def replay(names: tuple[str, ...], topics: Mapping[str, int], **settings: str) -> None:
    with running_cluster(1, **settings) as cluster:
        api = str(cluster.nodes[0].api)

        async def prepare() -> str:
            async with Admin(api) as admin:
                for topic, partitions in topics.items():
                    await admin.create_topic(topic, partitions)
                return (await admin.cluster()).cluster_id

        cluster_id = asyncio.run(prepare())
        for name in names:
            examples = examples_of(FOLDER / name)
            assert examples
            for requests, answers in examples:
                sent = requests.replace("localhost:8082", api).replace("CLUSTER", cluster_id)
                told = replayed(sent, api)
                assert len(told) == len(answers), (name, told)
                for answer, expected in zip(told, answers, strict=True):
                    assert fits(answer, expected), f"{name}: {answer}\nexpected {expected}"


def test_what_was_written_for_confluents_proxy() -> None:
    replay(("confluent-v2.md", "confluent-v3.md"), {"jsontest": 1, "binarytest": 1, "avrotest": 1})


def test_what_was_written_for_redpandas_proxy() -> None:
    replay(("redpanda-v2.md",), {"test_topic": 3}, rest_compat='"strimzi"')
