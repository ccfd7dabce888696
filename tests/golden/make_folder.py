"""Make a golden data folder: a node of some version of the code writes one of everything that it keeps, and stops.

    git archive REVISION | tar -x -C /tmp/old
    python -P tests/golden/make_folder.py /tmp/old tests/golden/folders/NAME.tar.gz

The archive has the data folder and `expected.json`: the content as the clients of that version were answered. This file
runs with the code of that version, and therefore uses only what every version since feature level 1 has; the rest is
left out if it is missing. `tests/integration/cluster/test_golden_folders.py` opens each archive with today's code.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import Any

PORT = 9640
PATIENCE_S = 60.0
CODECS = (None, "lz4", "zstd", "gzip", "snappy")
KEYS = 7


def main() -> None:
    """Make the archive, or as its own child fill the running node."""
    if sys.argv[1] == "--fill":
        expected = asyncio.run(fill(f"127.0.0.1:{PORT}"))
        with open(sys.argv[2], "w") as file:
            json.dump(expected, file)
        return
    code, archive = map(os.path.abspath, sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        make(code, folder)
        order = ["--sort=name", "--mtime=@0", "--owner=0", "--group=0", "--numeric-owner"]
        subprocess.run(["tar", *order, "-czf", archive, "-C", folder, "data", "expected.json"], check=True)


def make(code: str, folder: str) -> None:
    """Run a node of this code on a new data folder while it is filled."""
    environment = {**os.environ, "PYTHONPATH": code}
    program = [sys.executable, "-P", "-m", "raftlog.cli.main", "server"]
    voters = f"0@127.0.0.1:{PORT + 1}"
    init = ["init", "--data-folder", f"{folder}/data", "--node-id", "0", "--cluster-id", "golden", "--voters", voters]
    subprocess.run([*program, *init], env=environment, check=True, timeout=PATIENCE_S)
    with open(f"{code}/raftlog/config.py") as file:
        known = file.read()
    wanted = {"metadata_snapshot_entries": 10, "disk_ballast_bytes": 0}
    settings = ['data_folder = "data"', *(f"{name} = {value}" for name, value in wanted.items() if name in known)]
    for offset, name in enumerate(("api", "data")):
        settings += [f"[{name}.listen]", 'host = "127.0.0.1"', f"port = {PORT + offset}"]
    with open(f"{folder}/node.toml", "w") as file:
        file.write("\n".join(settings) + "\n")
    node = subprocess.Popen([*program, "run", "--config", f"{folder}/node.toml"], env=environment)
    try:
        wait_ready(node)
        filling = [sys.executable, "-P", os.path.abspath(__file__), "--fill", f"{folder}/expected.json"]
        subprocess.run(filling, env=environment, check=True, timeout=2 * PATIENCE_S)
        node.send_signal(signal.SIGTERM)
        assert node.wait(PATIENCE_S) == 0
    finally:
        node.kill()


def wait_ready(node: subprocess.Popen[bytes]) -> None:
    """Wait until the node takes requests."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/v1/ready", timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        assert node.poll() is None and time.monotonic() < deadline, "the node is not ready"
        time.sleep(0.1)


async def fill(bootstrap: str) -> dict[str, Any]:
    """Write topics, records, offsets, transactions and users. Return what is there afterwards."""
    from raftlog import Admin, Consumer, Producer

    expected: dict[str, Any] = {"topics": {}, "offsets": {}, "position": None, "users": []}
    topics = expected["topics"]
    async with Admin(bootstrap) as admin:
        for name, partitions, settings in (
            ("plain", 2, {"segment.bytes": "4096", "retention.ms": "-1"}),
            ("compacted", 1, {"cleanup.policy": "compact", "segment.bytes": "1024"}),
            ("unflushed", 1, {"flush": "os", "retention.ms": "-1"}),
        ):
            await admin.create_topic(name, partitions, 1, settings)
            topics[name] = [[] for _ in range(partitions)]
        for codec in CODECS:
            async with Producer(bootstrap, **({} if codec is None else {"compression": codec})) as producer:
                for number in (0, 1):
                    await send(producer, topics, "plain", number, [f"{codec}/{number}/{i}" * 5 for i in range(20)])
        async with Producer(bootstrap) as producer:
            for i in range(200):
                producer.send("compacted", b"c%d" % i, key=b"k%d" % (i % KEYS))
            topics["compacted"][0] = [f"c{i}" for i in range(200 - KEYS, 200)]
            await send(producer, topics, "unflushed", 0, [f"unflushed/{i}" for i in range(30)])
        if hasattr(Consumer, "subscribe"):
            expected["offsets"] = await commit(Consumer.subscribe, bootstrap, len(topics["plain"][0]))
        expected["feature_level"] = (await admin.cluster()).feature_level
        if "transactional_id" in inspect.signature(Producer.__init__).parameters and expected["feature_level"] >= 3:
            await admin.create_topic("moved", 1, 1, {"retention.ms": "-1"})
            topics["moved"] = [await transactions(Producer, bootstrap)]
            expected["position"] = 1
        if hasattr(admin, "create_user"):
            await admin.create_user("alice", superuser=True)
            expected["users"] = ["alice"]
    return expected


async def send(producer: Any, topics: dict[str, Any], topic: str, number: int, values: list[str]) -> None:
    await producer.send_many(topic, [value.encode() for value in values], partition=number)
    await producer.flush()
    topics[topic][number] += values


async def commit(subscribe: Any, bootstrap: str, count: int) -> dict[int, int]:
    """Read everything as a group, and commit it."""
    read = 0
    async with subscribe(
        bootstrap, "readers", ["plain"], auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        while read < 2 * count:
            read += len(await consumer.poll(timeout=1))
        await consumer.commit()
    return {0: count, 1: count}


async def transactions(producer_class: Any, bootstrap: str) -> list[str]:
    """Commit, abort and commit a transaction. Return the committed records."""
    committed: list[str] = []
    async with producer_class(bootstrap, transactional_id="golden") as producer:
        for ending, current in (("commit", -1), ("abort", 0), ("commit", 0)):
            transaction = producer.transaction()
            async with transaction:
                for i in range(5):
                    transaction.send("moved", f"{ending}{i}".encode(), partition=0)
                transaction.set_position("golden/position", current, current + 1)
                if ending == "abort":
                    await transaction.abort()
                else:
                    committed += [f"{ending}{i}" for i in range(5)]
    return committed


if __name__ == "__main__":
    main()
