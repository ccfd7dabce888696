"""A backup restored into an empty cluster: the same batches, producers, transactions, groups and positions (S1, S2).

One story on real processes: a cluster is filled and backed up twice, and is gone. A new cluster gets a damaged copy
first, then the restoring process is killed, then the restore ends; everything is compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from raftlog import Admin, Consumer, Producer
from raftlog.backup.batches import without_epoch
from raftlog.backup.chain import files_of
from raftlog.backup.cluster import ClusterLogs
from raftlog.backup.format import Manifest
from raftlog.backup.repository import Repository
from raftlog.backup.storage import FileStore
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.client.cluster.api import HttpApi
from raftlog.errors import RaftlogError
from raftlog.records.batch import encode, parse_header, split_batches
from raftlog.wire import ProducedPartition, ProducePartition, ProduceRequest, ProduceResponse
from tests.support.cli_runner import Result, run, start
from tests.support.clusters.cluster import PATIENCE_S, all_in_sync, eventually, running_cluster

pytestmark = pytest.mark.integration

TOPICS = ("big", "orders", "payments", "table")
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0"}
BIG_VALUES = 240
PRODUCER_RECORDS = 5


async def cli(cluster: LocalCluster | None, *arguments: str) -> Result:
    """Run a command in a thread: it brings its own event loop."""
    bootstrap = None if cluster is None else cluster.bootstrap
    return await asyncio.to_thread(lambda: run(*arguments, bootstrap=bootstrap))


async def backed_up(cluster: LocalCluster, place: Path, *options: str) -> Manifest:
    result = await cli(cluster, "backup", "create", str(place), *options)
    assert result.code == 0, result.stderr
    repository = Repository(FileStore(str(place)))
    return repository.manifest(repository.choose(None))[0]


def batches(place: Path) -> dict[str, list[bytes]]:
    """Return the batches of each partition of the newest backup, with leader epochs of 0."""
    repository = Repository(FileStore(str(place)))
    found = {}
    for (topic, partition), log in files_of(repository.chain(repository.choose(None))).items():
        data = (repository.read_batches(one.backup, log.topic_id, partition, one.file) for one in log.files)
        whole = [b"".join(without_epoch(batch)) for part in data for batch in split_batches(part)]
        found[f"{topic}/{partition}"] = [one for one in whole if parse_header(one).end_offset > log.log_start_offset]
    return found


@contextlib.asynccontextmanager
async def connected(cluster: LocalCluster) -> AsyncIterator[tuple[Admin, HttpApi]]:
    async with Admin(cluster.bootstrap) as admin, HttpApi(cluster.bootstrap) as api:
        yield admin, api


async def produce(api: HttpApi, topic_id: bytes, batch: bytes, *, restored: bool = False) -> ProducedPartition:
    request = ProduceRequest(0, -1, 10_000, [ProducePartition(topic_id, 0, len(batch))], restored=restored)
    answer, _ = await ClusterLogs(api).ask("/v1/produce", request, [memoryview(batch)])
    assert isinstance(answer, ProduceResponse)
    return answer.partitions[0]


def idempotent(producer_id: int, number: int, *, count: int = PRODUCER_RECORDS) -> bytes:
    """Return batch `number` of a producer that writes batches of one size."""
    values = [b"batch %d record %d" % (number, n) for n in range(count)]
    sequence = number * PRODUCER_RECORDS
    return encode(values, base_timestamp_ms=1, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


@dataclass
class Lost:
    """The cluster that is gone: its backups and what it was like."""

    chain: Path
    """Three backups: a full one and two that continue it."""
    whole: Path
    """One full backup of the same content."""
    manifest: Manifest
    producer_id: int
    last_offset: int
    committed: dict[int, int] = field(default_factory=dict)


async def fill_again(cluster: LocalCluster) -> None:
    """Add to what is there: records of every kind."""
    async with Producer(cluster.bootstrap, compression="zstd") as producer:
        await producer.send_many("orders", [b"%d" % n for n in range(300)], partition=0)
        await producer.send_many("orders", [b"x" * 1000] * 300, partition=1)
        for kept in (True, False, True):
            with contextlib.suppress(ZeroDivisionError):
                async with producer.transaction() as transaction:
                    await transaction.send_many("payments", [b"paid"] * 20, partition=0)
                    assert kept or 1 // 0
        for number in range(60):
            await producer.send("table", b"v%d" % number, key=b"k%d" % (number % 3), partition=0)
            await producer.flush()


async def is_compacted(api: HttpApi, topic_id: bytes) -> bool:
    found = await ClusterLogs(api).fetch(topic_id, 0, 0)
    return any(header.record_count <= header.last_offset_delta for header, _ in found)


async def filled(cluster: LocalCluster, folder: Path) -> Lost:
    chain, whole = folder / "chain", folder / "whole"
    async with connected(cluster) as (admin, api):
        for topic in TOPICS:
            await admin.create_topic(topic, 2 if topic == "orders" else 1, 3, COMPACTED if topic == "table" else {})
        ids = {topic: (await admin.describe_topic(topic)).id_bytes for topic in TOPICS}
        told = await api.post("/v1/producers", dict[str, int])
        producer_id = told["producer_id"]
        await produce(api, ids["orders"], idempotent(producer_id, 0))
        await fill_again(cluster)
        await backed_up(cluster, chain, "--file-size", "32KiB")

        async with Producer(cluster.bootstrap) as producer:
            for _ in range(BIG_VALUES):
                await producer.send("big", os.urandom(200_000), partition=0)
        await fill_again(cluster)
        await backed_up(cluster, chain, "--file-size", "1MiB")

        await admin.delete_records("orders", {0: 7})
        await fill_again(cluster)
        last = await produce(api, ids["orders"], idempotent(producer_id, 1))
        await eventually(lambda: is_compacted(api, ids["table"]), "the compaction of table")
        async with Consumer.subscribe(
            cluster.bootstrap, "billing", ["orders"], auto_offset_reset="earliest"
        ) as consumer:
            seen: set[int] = set()
            while seen != {0, 1}:
                seen |= {record.partition for record in await consumer.poll(timeout=1)}
            await consumer.commit()
        committed = {one.partition: one.offset for one in await admin.group_offsets("billing") if one.offset}
        async with Producer(cluster.bootstrap) as producer:
            async with producer.transaction() as transaction:
                transaction.set_position("job", -1, 42)
            # A transaction that is open when the backup is taken is aborted by the restore.
            with contextlib.suppress(ZeroDivisionError):
                async with producer.transaction() as transaction:
                    await transaction.send_many("payments", [b"never decided"] * 5, partition=0)
                    await producer.flush()
                    manifest = await backed_up(cluster, chain)
                    await backed_up(cluster, whole, "--full")
                    raise ZeroDivisionError
    return Lost(chain, whole, manifest, producer_id, last.base_offset, committed)


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lost]:
    with running_cluster() as cluster:
        made = asyncio.run(filled(cluster, tmp_path_factory.mktemp("backups")))
    yield made


def damaged_copy(place: Path, copy: Path) -> Path:
    """Copy a repository and flip a bit in the middle of a file of the topic `big`, the only one with large files."""
    shutil.copytree(place, copy)
    victims = [path for path in sorted(copy.rglob("*.batches")) if path.stat().st_size > 900_000]
    data = bytearray(victims[2].read_bytes())
    data[len(data) // 2] ^= 1
    victims[2].write_bytes(data)
    return copy


async def end_of(admin: Admin, topic: str) -> int:
    try:
        return (await admin.topic_offsets(topic, isolation="read_uncommitted"))[0].latest
    except RaftlogError:
        return 0


async def test_a_backup_is_restored_into_an_empty_cluster_s1_s2(lost: Lost, tmp_path: Path) -> None:
    with running_cluster() as cluster:
        async with connected(cluster) as (admin, api):
            # A damaged file is found before any of it is appended.
            damaged = await cli(cluster, "backup", "restore", str(damaged_copy(lost.chain, tmp_path / "copy")))
            assert damaged.code == 1 and "SHA-256" in damaged.stderr, damaged.stderr
            ended = await end_of(admin, "big")
            assert 0 < ended < BIG_VALUES

            # The restoring process is killed. Until the restore is complete, the topics take no other batch.
            child = start("backup", "restore", str(lost.chain), "--parallel", "1", bootstrap=cluster.bootstrap)
            try:
                await eventually(lambda: _passed(admin, "big", ended), "the restore goes on")
            finally:
                child.kill()
                await asyncio.to_thread(child.communicate)
            assert await end_of(admin, "big") < BIG_VALUES, "killed in the middle"
            orders = await admin.describe_topic("orders")
            assert orders.configs["restoring"] == str(lost.manifest.next_producer_id)
            refused = await produce(api, orders.id_bytes, encode([b"too early"], base_timestamp_ms=1))
            assert refused.error == "topic_restoring"

            result = await cli(cluster, "backup", "restore", str(lost.chain), "-o", "json")
            assert result.code == 0, result.stderr
            assert result.json["topics"] == len(TOPICS) and result.json["compared_bytes"] > 0
            described = await all_in_sync(admin, *TOPICS)
            assert {one.configs["restoring"] for one in described.values()} == {"-1"}
            await check_content(lost, cluster, tmp_path / "restored")
            await check_state(lost, admin, api, cluster)

            # Once more: everything is there, and nothing is changed.
            again = await cli(cluster, "backup", "restore", str(lost.chain), "-o", "json")
            assert again.code == 0, again.stderr
            assert again.json["appended_bytes"] == 0


async def test_a_restore_goes_on_when_a_leader_dies_s1(lost: Lost, tmp_path: Path) -> None:
    with running_cluster() as cluster:
        async with connected(cluster) as (admin, _):
            restoring = asyncio.create_task(
                cli(cluster, "backup", "restore", str(lost.chain), "--parallel", "1", "-o", "json")
            )
            await eventually(lambda: _passed(admin, "big", 0), "the restore begins")
            leader = (await admin.describe_topic("big")).partitions[0].leader
            assert leader is not None and await end_of(admin, "big") < BIG_VALUES
            await asyncio.to_thread(cluster.kill_node, leader)
            result = await restoring
            assert result.code == 0, result.stderr
            await asyncio.to_thread(cluster.start_node, leader)
            await asyncio.to_thread(cluster.wait_ready, PATIENCE_S)
            await all_in_sync(admin, *TOPICS)
            await check_content(lost, cluster, tmp_path / "restored")


async def _passed(admin: Admin, topic: str, end: int) -> bool:
    return await end_of(admin, topic) > end


async def check_content(lost: Lost, cluster: LocalCluster, place: Path) -> None:
    """The new cluster's batches are those of the lost one, up to the end of the backup."""
    new = await backed_up(cluster, place)
    theirs, ours = batches(lost.whole), batches(place)
    assert theirs.keys() == ours.keys()
    for name, expected in theirs.items():
        assert ours[name][: len(expected)] == expected, name
        rest = [parse_header(one) for one in ours[name][len(expected) :]]
        assert all(header.is_control for header in rest), f"{name}: only the marker of the open transaction follows"
        assert bool(rest) == (name == "payments/0"), name
    old = {topic.name: topic for topic in lost.manifest.topics}
    for topic in new.topics:
        starts = [one.log_start_offset for one in topic.partitions]
        assert starts == [one.log_start_offset for one in old[topic.name].partitions], topic.name
        assert topic.configs == old[topic.name].configs
    assert [one.log_start_offset for one in old["orders"].partitions] == [7, 0]


async def check_state(lost: Lost, admin: Admin, api: HttpApi, cluster: LocalCluster) -> None:
    """Groups, positions, producers and transactions are as they were."""
    offsets = {one.partition: one.offset for one in await admin.group_offsets("billing") if one.offset}
    assert offsets == lost.committed
    assert await admin.position("job") == 42

    orders = (await admin.describe_topic("orders")).id_bytes
    again = await produce(api, orders, idempotent(lost.producer_id, 1))
    assert (again.error, again.base_offset) == ("", lost.last_offset), "the duplicate gets its first offset (S1)"
    gap = await produce(api, orders, idempotent(lost.producer_id, 3))
    assert gap.error == "out_of_order_sequence"
    following = await produce(api, orders, idempotent(lost.producer_id, 2))
    assert following.error == "" and following.base_offset > lost.last_offset
    told = await api.post("/v1/producers", dict[str, int])
    assert told["producer_id"] >= lost.manifest.next_producer_id

    read: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S):
        async with Consumer(cluster.bootstrap, "payments", max_wait_ms=50) as consumer:
            while len(consumer.lag) < 1 or any(consumer.lag.values()):
                read += [record.value or b"" for record in await consumer.poll(timeout=0.05)]
    assert read == [b"paid"] * 120, (
        "three times two committed transactions; the aborted and the open ones are gone (S13)"
    )


def test_a_secure_cluster_is_backed_up_and_restored_by_those_who_may_s12(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "backups")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def act(cluster: LocalCluster, *arguments: str, stdin: bytes = b"", code: int = 0, token: str = "") -> Result:
        """Run a command as a user: as the first administrator, or by a token.

        In a child process: a loop that ends at once leaves closing TLS connections behind, which this one would report.
        """
        assert cluster.security is not None
        environment = {**os.environ, **cluster.security.environment}
        if token:
            kept = {name: value for name, value in environment.items() if "RAFTLOG_" not in name or "AUTHORITY" in name}
            environment = {**kept, "RAFTLOG_TOKEN": token}
        child = start(*arguments, bootstrap=cluster.bootstrap, env=environment)
        output, errors = child.communicate(stdin, timeout=PATIENCE_S)
        result = Result(child.returncode, output, errors.decode())
        assert result.code == code, result.stderr
        return result

    with running_cluster(1, secure=True) as cluster:
        act(cluster, "topic", "create", "orders")
        act(cluster, "produce", "orders", stdin=b"one\ntwo\n")
        act(cluster, "user", "create", "alice", "--password-file", "-", stdin=b"a-password-of-the-test")
        act(cluster, "acl", "create", "--allow-principal", "User:alice", "--operation", "write", "--topic", "orders")
        act(cluster, "quota", "set", "User:alice", "--requests-per-second", "50")
        act(cluster, "backup", "create", place, "--security")
    written = b"".join(path.read_bytes() for path in Path(place).rglob("*") if path.is_file())
    assert b"User:alice" in written and b"argon2" not in written, "no secret, not even its hash"

    with running_cluster(1, secure=True) as cluster:
        act(cluster, "user", "create", "bob", "--password-file", "-", stdin=b"a-password-of-the-test")
        act(cluster, "acl", "create", "--allow-principal", "User:bob", "--operation", "all", "--topic", "*")
        act(cluster, "acl", "create", "--allow-principal", "User:bob", "--operation", "describe", "--cluster")
        token = act(cluster, "token", "create", "--user", "bob").text.strip()
        refused = act(cluster, "backup", "restore", place, code=1, token=token)
        assert "alter" in refused.stderr, refused.stderr
        assert act(cluster, "topic", "list", "-o", "json").json == []
        restored = act(cluster, "backup", "restore", place, "--security")
        assert "user alice is not restored" in restored.stderr
        assert act(cluster, "consume", "orders", "--from", "earliest", "--end").lines == ["one", "two"]
        assert "User:alice" in act(cluster, "acl", "list").text and "50" in act(cluster, "quota", "list").text
