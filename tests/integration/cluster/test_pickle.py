"""Pickle is never used: a whole cluster works without it, no port loads one, and no file of the quorum contains one.

Unmodified pysyncobj pickles everything that it sends and stores, and unpickles everything that it receives: that is
remote code execution (`test_stock_runs_what_a_peer_sends`, `test_stock_runs_what_a_stranger_sends_to_its_port`). In
these tests every node ends at once if anything in it pickles or unpickles
(`tests/support/clusters/node_without_pickle.py`).
"""

from __future__ import annotations

import asyncio
import gzip
import os
import pickle
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from metadata.quorum import protocol as qp
from metadata.raft.messages import Append, Entry, SnapshotChunk
from metadata.raft.messages import encode as encode_message
from partitions.replication import protocol as rp
from raftlog import Admin
from raftlog.broker.identity import read_identity
from raftlog.cli.nodes.local_cluster import DATA_FOLDER, LocalCluster, LocalNode, free_base_port
from raftlog.http2.frames import PREFACE
from raftlog.system.disk import LocalDisk
from tests.support import clusters
from tests.support.clusters.attack import pickled, state_of
from tests.support.clusters.cluster import PATIENCE_S, all_in_sync, eventually, node_api, started
from tests.support.clusters.node_without_pickle import EXIT_CODE
from tests.support.clusters.pickles import pickles_in
from tests.support.clusters.traffic import Traffic, check_exactly
from tests.support.clusters.wire import talking

pytestmark = pytest.mark.integration

WITHOUT_PICKLE = os.path.join(os.path.dirname(os.path.abspath(clusters.__file__)), "node_without_pickle.py")
TOPIC = "t"
SNAPSHOT_ENTRIES = 40
DATA_PATHS = ("/v1/produce", "/v1/fetch", "/raftlog.forward", rp.REPLICATION_PATH, qp.QUORUM_PATH)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = str(tmp_path_factory.mktemp("without-pickle"))
    settings = {"metadata_snapshot_entries": str(SNAPSHOT_ENTRIES)}
    program = (sys.executable, "-P", WITHOUT_PICKLE)
    cluster = LocalCluster(folder, 3, free_base_port(3), settings=settings, program=program)
    # Every living node has pickled nothing: `started` requires that it ends with 0.
    with started(cluster):
        yield cluster


def quorum_files(node: LocalNode) -> list[Path]:
    return sorted(path for path in Path(node.folder, DATA_FOLDER, "quorum").rglob("*") if path.is_file())


# --- The ban itself ---------------------------------------------------------------------------------------------------


ATTEMPTS = (
    "pickle.loads(b'N.')",
    "pickle.load(io.BytesIO(b'N.'))",
    "pickle.dumps(1)",
    "pickle.Unpickler(io.BytesIO(b'N.')).load()",
    "pickle._loads(b'N.')",
    "_pickle.loads(b'N.')",
    "_pickle.Pickler(io.BytesIO())",
    "pysyncobj.pickle.loads(b'N.')",
    "pysyncobj.journal.dumps({})",
)
_ATTEMPTS = f"""
import _pickle, io, os, pickle, runpy, sys
sys.argv = ["node", "--version"]
try:
    runpy.run_path({WITHOUT_PICKLE!r}, run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
import pysyncobj.pickle, pysyncobj.journal
for attempt in {ATTEMPTS!r}:
    child = os.fork()
    if not child:
        eval(attempt)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), attempt)
"""


def test_the_ban_ends_a_process_that_pickles() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", _ATTEMPTS], capture_output=True, check=True, timeout=PATIENCE_S)
    ended = done.stdout.decode().splitlines()[1:]  # after the version
    assert ended == [f"{EXIT_CODE} {attempt}" for attempt in ATTEMPTS]
    assert done.stderr.count(b"in refuse") == len(ATTEMPTS), "it says who pickled"


def test_pickles_are_found_wherever_they_hide() -> None:
    bomb = pickled("/nonexistent")
    for protocol in range(6):
        inside = pickle.dumps(os.mkdir, protocol)
        for hidden in (inside, zlib.compress(inside, 3), gzip.compress(inside)):
            assert pickles_in(b"\xff" * 7 + hidden + b"\xff" * 9), (protocol, hidden)
    assert pickles_in(pickle.dumps({"term": 3}, 2)) == [0]
    assert pickles_in(stock_frame(bomb)) and pickles_in(os.urandom(1000) + bomb)
    assert pickles_in(bytes(range(256)) * 4) == []


# --- A cluster without pickle -----------------------------------------------------------------------------------------


async def test_a_cluster_elects_forwards_snapshots_and_restarts_without_pickle(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic(TOPIC, 3, 3)
        await all_in_sync(admin, TOPIC)
        async with Traffic(cluster.bootstrap, TOPIC, 3, records=2, pause=0.1) as traffic:
            await traffic.grows()
            quorum = await admin.quorum()
            away = next(number for number in range(3) if number != quorum.leader)
            await asyncio.to_thread(cluster.kill_node, away)
            await change_through(cluster, 2 * SNAPSHOT_ENTRIES, without=away)
            await traffic.grows()
            # It lags behind the others' logs: it gets a snapshot.
            await asyncio.to_thread(cluster.start_node, away)
            await all_in_sync(admin, TOPIC)
            for node in cluster.nodes:
                assert any(path.name == "snapshot" for path in quorum_files(node))
            # The quorum's leader dies; another is elected, and the first restarts from its own snapshot and journal.
            await asyncio.to_thread(cluster.kill_node, quorum.leader)
            survivor = cluster.nodes[away]
            async with Admin(str(survivor.api)) as other:
                await eventually(lambda: led_anew(other, quorum.term), "another leader of the quorum")
            await change_through(cluster, 10, without=quorum.leader)
            await traffic.grows()
            await asyncio.to_thread(cluster.start_node, quorum.leader)
            await all_in_sync(admin, TOPIC)
            await traffic.grows()
        await check_exactly(cluster.bootstrap, traffic)


async def led_anew(admin: Admin, term: int) -> bool:
    now = await admin.quorum()
    return now.leader >= 0 and now.term > term


async def change_through(cluster: LocalCluster, changes: int, *, without: int) -> None:
    """Change metadata through every running node: most changes are forwarded to the quorum's leader; and produce
    through each node, most of which is forwarded to the partition's leader."""
    nodes = [node for node in cluster.nodes if node.node_id != without]

    async def change(node: LocalNode) -> None:
        async with Admin(str(node.api)) as admin, node_api(node) as api:
            for number in range(changes // len(nodes)):
                await admin.alter_topic(TOPIC, {"retention.ms": str(3_600_000 + number)})
            for partition in range(3):
                described = await api.get(f"/v1/topics/{TOPIC}/partitions/{partition}/records?offset=earliest")
                assert described.status == 200, described

    await asyncio.gather(*(change(node) for node in nodes))


# --- Attacks ----------------------------------------------------------------------------------------------------------


def stock_frame(body: bytes) -> bytes:
    """As pysyncobj frames it: native length, zlib, pickle."""
    packed = zlib.compress(body, 3)
    return struct.pack("i", len(packed)) + packed


def stock_messages(bomb: bytes) -> list[bytes]:
    """The messages of pysyncobj's own nodes and its administration, with the malicious pickle in each of them."""
    said: list[object] = [
        "node-1",
        "readonly",
        ["status"],
        ("remove", "127.0.0.1:1"),
        {"type": "request_vote", "term": 99, "last_log_index": 1 << 40, "last_log_term": 99},
        {"type": "append_entries", "term": 99, "commit_index": 1, "serialized": (bomb, True, True)},
        {"type": "append_entries", "term": 99, "commit_index": 1, "entries": [(b"\0" + bomb, 2, 99)]},
        {"type": "apply_command", "command": b"\0" + bomb},
    ]
    frames = [stock_frame(bomb), *(stock_frame(pickle.dumps(message, 2)) for message in said)]
    return [b"".join(frames), *frames, bomb, zlib.compress(bomb), gzip.compress(bomb)]


def quorum_frames(cluster: LocalCluster, bomb: bytes) -> list[list[bytes]]:
    """Sequences on the quorum's path: the malicious pickle in every field of bytes of a voter's frame, after a valid
    hello."""
    identity = read_identity(LocalDisk(folder := os.path.join(cluster.nodes[1].folder, DATA_FOLDER)), folder)
    hello = qp.Hello(qp.PROTOCOL_VERSION, identity.cluster_id, 1, bytes(16))
    payloads = [bomb, b"\0" + bomb, zlib.compress(bomb), stock_frame(bomb)]
    found: list[list[bytes]] = []
    for payload in payloads:
        chunk = SnapshotChunk(1, 2, 1, len(payload), 0, 0, 0, payload)
        append = Append(1, 1, 0, 1, (Entry(1, payload),))
        for frame in (
            qp.EngineFrame(payload),
            qp.EngineFrame(msgspec.msgpack.encode(append)),
            qp.EngineFrame(encode_message(chunk)),
            qp.Propose(1, payload, False),
            qp.Proposed(1, "applied", 1, payload),
        ):
            found.append([bytes(qp.encode(hello)), bytes(qp.encode(frame))])
        found.append([payload])
    return found


async def send_raw(host: str, port: int, data: bytes) -> None:
    """Send bytes to a port, until the node closes the connection or has received all of them."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            while await reader.read(65536):
                pass
    except ConnectionError:
        pass  # the node may close it
    finally:
        writer.transport.abort()


async def test_pickles_sent_to_every_port_are_only_bytes(cluster: LocalCluster, tmp_path: Path) -> None:
    """S11, S12: nothing is created, no process dies, nothing changes, and the cluster continues."""
    bomb = pickled(str(tmp_path / "owned"))
    pickle.loads(bomb)
    os.rmdir(tmp_path / "owned")  # it is malicious: loading it creates this folder
    async with Admin(cluster.bootstrap) as admin:
        if TOPIC not in {topic.name for topic in await admin.list_topics()}:
            await admin.create_topic(TOPIC, 3, 3)
        await all_in_sync(admin, TOPIC)
        before = await state_of(cluster, admin, TOPIC)
        for node in cluster.nodes:
            for endpoint in (node.api, node.data):
                for message in stock_messages(bomb):
                    await send_raw(endpoint.host, endpoint.port, message)
                    await send_raw(endpoint.host, endpoint.port, PREFACE + message)
            for path in DATA_PATHS:
                for message in (bomb, stock_frame(bomb)):
                    await say(node, path, [message])
            for frames in quorum_frames(cluster, bomb):
                await say(node, qp.QUORUM_PATH, frames)
            async with node_api(node) as api:
                for content in ("application/octet-stream", "application/python-pickle", "application/json"):
                    answer = await api.post("/v1/produce", bomb, content)
                    assert 400 <= answer.status < 500, answer
        assert not (tmp_path / "owned").exists()
        assert await state_of(cluster, admin, TOPIC) == before
        await admin.create_topic("after", 1, 3)
        await all_in_sync(admin, "after")
    assert cluster.died() == []


async def say(node: LocalNode, path: str, messages: list[bytes]) -> None:
    """Send messages on a stream, until the node has read them: it answers or ends the stream, or closes the
    connection."""
    async with talking(node.data, path) as talk:
        for message in messages:
            talk.send(message)
        answered = asyncio.ensure_future(talk.messages.get())
        await asyncio.wait([answered, asyncio.shield(talk.closed)], timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()


# --- Files on disk ----------------------------------------------------------------------------------------------------


def test_no_file_of_the_quorum_holds_a_pickle(cluster: LocalCluster) -> None:
    """Entries, votes, snapshots and the record of the voters, of running nodes."""
    for node in cluster.nodes:
        files = quorum_files(node)
        assert any(path.name.startswith("journal-") for path in files)
        for path in files:
            content = path.read_bytes()
            assert pickles_in(content) == [], path
            for whole in (content, content[4:]):
                with pytest.raises((pickle.UnpicklingError, ValueError, EOFError, KeyError, IndexError)):
                    pickle.loads(whole)
