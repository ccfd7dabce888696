"""The cost of a single record: function calls, system calls and turns of event loops.

Three nodes and a producer run in this process on one loop; one record after the other is sent (`acks=all`, one
partition, three replicas, fsync on) and awaited. Records are therefore never batched, and the counts are the same on a
busy machine as on a quiet one: the sum over a leader, two followers and a client. Do not use the times: with all nodes
in one interpreter they are longer than with separate processes.

    python benchmarks/lone_records.py                  one line of counts
    python benchmarks/lone_records.py --by file        the calls by file
    python benchmarks/lone_records.py --by function --top 40
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import cProfile
import gc
import os
import pstats
import sys
import tempfile
import time
from typing import Any

import structlog
from measuring import console, middle, wait_in_sync

from raftlog import Admin, Producer
from raftlog.broker.node import node as lifecycle
from raftlog.cli.nodes.local_cluster import SETTINGS_FILE, LocalCluster, free_base_port
from raftlog.config import load_node_config

TOPIC = "lone"
VALUE = bytes(100)
WARM_UP = 100
SYSTEM_CALLS = {"poll": "epoll", "send": "'send'", "sendmsg": "sendmsg", "recv": "recv"}
"""Column → a part of the names of the functions that it counts."""


def settings_of(folder: str) -> str:
    with open(f"{folder}/{SETTINGS_FILE}") as file:
        return file.read()


async def nodes_of(cluster: LocalCluster, stack: contextlib.AsyncExitStack) -> None:
    """Start all nodes of a prepared cluster on this loop."""
    nodes = []
    for node in cluster.nodes:
        cluster.write_settings(node)
        nodes.append(lifecycle.Node(load_node_config(settings_of(node.folder)), f"{node.folder}/data"))
        stack.push_async_callback(nodes[-1].stop)
    await asyncio.gather(*(node.start() for node in nodes))


async def send_alone(producer: Producer, records: int) -> list[float]:
    """Return the seconds that each record took."""
    took = []
    for _ in range(records):
        began = time.monotonic()
        await producer.send_and_wait(TOPIC, VALUE)
        took.append(time.monotonic() - began)
    return took


async def measure(folder: str, records: int) -> tuple[dict[Any, Any], list[float], float]:
    """Return the profiler's statistics, and per record the seconds and CPU seconds without the profiler."""
    cluster = LocalCluster(folder, 3, free_base_port(3), settings={})
    cluster.prepare()
    async with contextlib.AsyncExitStack() as stack:
        await nodes_of(cluster, stack)
        async with Admin(cluster.bootstrap) as admin:
            while any(node.fenced for node in (await admin.cluster()).nodes):  # noqa: ASYNC110  there is no event
                await asyncio.sleep(0.1)
            await admin.create_topic(TOPIC, 1, 3)
            await wait_in_sync(admin, [TOPIC])
        producer = await stack.enter_async_context(Producer(cluster.bootstrap, linger_ms=0))
        await send_alone(producer, WARM_UP)
        gc.collect()
        gc.freeze()
        began = time.process_time()
        took = await send_alone(producer, records)
        spent = (time.process_time() - began) / records
        profile = cProfile.Profile()
        profile.enable()
        await send_alone(producer, records)
        profile.disable()
    return pstats.Stats(profile).stats, took, spent  # type: ignore[attr-defined]


def table(stats: dict[Any, Any], records: int, by: str, top: int) -> list[str]:
    """Return the calls of each file or function, in descending order."""
    calls: dict[str, int] = {}
    for (path, line, name), (_, count, *_) in stats.items():
        file = "/".join(path.split("/")[-2:])
        where = name if path == "~" else f"{file}:{line} {name}"
        if by == "file":
            where = "built in" if path == "~" else file
        calls[where] = calls.get(where, 0) + count
    most = sorted(calls.items(), key=lambda item: -item[1])[:top]
    return [f"{count / records:8.1f}  {where}" for where, count in most]


def main() -> None:
    parser = argparse.ArgumentParser(description="function calls, system calls and turns of the loop for a lone record")
    parser.add_argument("--records", type=int, default=500)
    parser.add_argument("--by", choices=("file", "function"))
    parser.add_argument("--top", type=int, default=30)
    parser.add_argument("--folder", help="folder for the nodes' data, default: the system's temporary folder")
    options = parser.parse_args()
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    vars(lifecycle)["configure_logging"] = lambda *_, **__: None
    sys.setswitchinterval(lifecycle.SWITCH_INTERVAL_SECONDS)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        stats, took, spent = asyncio.run(measure(folder, options.records))
    calls = sum(count for _, count, *_ in stats.values())
    python = sum(count for (path, *_), (_, count, *_) in stats.items() if path != "~")
    handles = sum(count for (path, _, name), (_, count, *_) in stats.items() if name == "_run" and "events" in path)
    system = {
        column: sum(count for (path, _, name), (_, count, *_) in stats.items() if path == "~" and part in name)
        for column, part in SYSTEM_CALLS.items()
    }
    shown = " ".join(f"{column} {count / options.records:.1f}" for column, count in system.items())
    console.print(
        f"per record: {calls / options.records:.0f} calls, {python / options.records:.0f} of them Python's; callbacks "
        f"of the loop {handles / options.records:.1f}; system calls of the loop: {shown}; {1e6 * spent:.0f} us of CPU, "
        f"{1e3 * middle(took):.2f} ms ({os.cpu_count()} cores, all in one process)"
    )
    for line in table(stats, options.records, options.by, options.top) if options.by else ():
        console.print(line)


if __name__ == "__main__":
    main()
