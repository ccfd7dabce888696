"""`raftlog consume` as a member of a group, against a node: it continues, and commits only what was written (S8).

Offsets and sizes of its topics as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.sync import Admin, Producer
from tests.support.cli_runner import Result, run
from tests.support.clusters.cluster import running_cluster

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def node() -> Iterator[LocalCluster]:
    with running_cluster(1) as cluster:
        yield cluster


def produce(node: LocalCluster, topic: str, *values: bytes) -> None:
    with Producer(node.bootstrap) as producer:
        producer.send_many(topic, list(values), partition=0)


def consume(node: LocalCluster, *arguments: str) -> Result:
    return run("consume", *arguments, bootstrap=node.bootstrap)


def committed(node: LocalCluster, group: str) -> dict[str, int | None]:
    with Admin(node.bootstrap) as admin:
        return {f"{one.topic}/{one.partition}": one.offset for one in admin.group_offsets(group)}


def test_a_group_continues_where_it_ended(node: LocalCluster) -> None:
    with Admin(node.bootstrap) as admin:
        admin.create_topic("continued", partitions=1)
    produce(node, "continued", *(b"%d" % number for number in range(10)))
    group = ("continued", "--group", "g1", "--from", "earliest")
    first = consume(node, *group, "--max-records", "4")
    assert first.code == 0, first.stderr
    assert first.lines == ["0", "1", "2", "3"]
    assert committed(node, "g1") == {"continued/0": 4}
    second = consume(node, *group, "--timeout", "2", "--format", "%o=%v;")
    assert second.text == "4=4;5=5;6=6;7=7;8=8;9=9;"
    assert committed(node, "g1") == {"continued/0": 10}
    with Admin(node.bootstrap) as admin:
        assert admin.describe_group("g1").members == [], "it left"


def test_a_pattern_subscribes_to_every_topic_that_matches(node: LocalCluster) -> None:
    with Admin(node.bootstrap) as admin:
        for name in ("sales-eu", "sales-us", "other"):
            admin.create_topic(name, partitions=1)
    for name in ("sales-eu", "sales-us", "other"):
        produce(node, name, name.encode())
    result = consume(
        node, "--regex", "sales-.*", "--group", "g2", "--from", "earliest", "--max-records", "2", "--format", "ndjson"
    )
    assert result.code == 0, result.stderr
    assert sorted(line.split('"topic":"')[1].rstrip('"}') for line in result.lines) == ["sales-eu", "sales-us"]
    assert "reading 2 topics: sales-eu, sales-us" in result.stderr


def test_a_missing_topic_is_an_error_at_once(node: LocalCluster) -> None:
    result = consume(node, "sales-ew", "--group", "g3", "--timeout", "1")
    assert result.code == 1
    assert result.stderr.startswith("Error: there is no topic 'sales-ew'. Did you mean 'sales-eu'")


def test_offsets_and_sizes_of_topics(node: LocalCluster) -> None:
    with Admin(node.bootstrap) as admin:
        admin.create_topic("sized", partitions=2)
    produce(node, "sized", *[b"x" * 100] * 50)
    offsets = run("topic", "offsets", "sized", bootstrap=node.bootstrap)
    assert offsets.table("Topic") == [
        ["Topic", "Partition", "Earliest", "Latest", "Offsets"],
        ["sized", "0", "0", "50", "50"],
        ["sized", "1", "0", "0", "0"],
    ]
    recent = run("topic", "offsets", "sized", "--at", "1h", "-o", "json", bootstrap=node.bootstrap)
    assert [(one["partition"], one["offset"]) for one in recent.json] == [(0, 0), (1, None)]
    assert run("topic", "offsets", "sized", "--at", "soon", bootstrap=node.bootstrap).code == 2
    sizes = run("topic", "sizes", "sized", "--by", "replica", bootstrap=node.bootstrap)
    assert sizes.code == 0, sizes.stderr
    header, first, second = sizes.table("Topic")
    shown = dict(zip(header, first, strict=False))
    assert (shown["Partition"], shown["Broker"], shown["LogEndOffset"], shown["OffsetLag"]) == ("0", "0", "50", "0")
    assert int(shown["Bytes"]) > 5000 > int(dict(zip(header, second, strict=False))["Bytes"])
    (by_topic,) = run("topic", "sizes", "sized", "-o", "json", bootstrap=node.bootstrap).json
    assert (by_topic["topic"], by_topic["partitions"], by_topic["replicas"]) == ("sized", 2, 2)
    assert run("topic", "sizes", "sizes", bootstrap=node.bootstrap).stderr.endswith("Did you mean 'sized'?\n")
