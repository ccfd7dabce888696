"""Invalid input, and the state that must be the same after it as before (S11)."""

from __future__ import annotations

import os
import pickle
import random
import struct
from dataclasses import dataclass
from typing import Any

import msgpack

from raftlog import Admin
from raftlog.cli.nodes.local_cluster import LocalCluster
from tests.golden.record_batch_reference import NaiveRecord, batch, compress, payload, seal

T0 = 1_700_000_000_000
RECORDS = [NaiveRecord(0, T0, b"k", b"value"), NaiveRecord(1, T0 + 1, None, None), NaiveRecord(2, T0 + 2, b"", b"")]
GOOD = batch(RECORDS)
BODY = payload(RECORDS, T0)
TIMES = {"base_timestamp": T0, "max_timestamp": T0 + 2}
MIB = 1 << 20


def columns(*changes: tuple[int, Any], arity: int = 5) -> bytes:
    """Encode the good batch's columns with some of them replaced, behind a header that fits everything else."""
    parts = msgpack.unpackb(BODY)
    for place, column in changes:
        parts[place] = column
    return seal(msgpack.packb(parts[:arity]), 3, **TIMES)


def int32s(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def lying_batches() -> dict[str, bytes]:
    """The violated rule → the batch. The CRC is correct, unless it is the violated rule."""
    flipped = GOOD[:-1] + bytes([GOOD[-1] ^ 1])
    body = len(BODY)
    return {
        "nothing at all": b"",
        "half a header": GOOD[:30],
        "a header alone": GOOD[:61],
        "cut off": GOOD[:-1],
        "a byte too many": GOOD + b"\0",
        "two where one is announced": GOOD + GOOD,
        "its CRC": flipped,
        "Kafka's magic": seal(BODY, 3, magic=2, **TIMES),
        "no magic of anybody's": seal(BODY, 3, magic=0x7F, **TIMES),
        "a longer length": seal(BODY, 3, batch_length=body + 49 + 7, **TIMES),
        "a shorter length": seal(BODY, 3, batch_length=body + 49 - 7, **TIMES),
        "a negative length": seal(BODY, 3, batch_length=-1, **TIMES),
        "an enormous length": seal(BODY, 3, batch_length=2**31 - 1, **TIMES),
        "more records": seal(BODY, 4, **TIMES),
        "fewer records": seal(BODY, 2, **TIMES),
        "no records": seal(BODY, 0, last_offset_delta=-1, **TIMES),
        "a negative number of records": seal(BODY, -3, last_offset_delta=2, **TIMES),
        "two thousand million records": seal(BODY, 2**31 - 1, **TIMES),
        "the last offset": seal(BODY, 3, last_offset_delta=9, **TIMES),
        "a last offset below the first": seal(BODY, 3, last_offset_delta=-2, **TIMES),
        "the greatest time": seal(BODY, 3, base_timestamp=T0, max_timestamp=T0 + 50_000),
        "a greatest time below the base": seal(BODY, 3, base_timestamp=T0, max_timestamp=T0 - 1),
        "a codec that there is not": seal(BODY, 3, attributes=7, **TIMES),
        "attributes that there are not": seal(BODY, 3, attributes=0x4000, **TIMES),
        "being the leader's own": seal(BODY, 3, attributes=0x20, **TIMES),
        "being compressed": seal(BODY, 3, attributes=4, **TIMES),
        "how it is compressed": seal(compress(3, BODY), 3, attributes=4, **TIMES),
        "what it grows to": seal(compress(4, bytes(64 * MIB)), 3, attributes=4, **TIMES),
        "columns that are no msgpack": seal(b"\xc1" * 40, 3, **TIMES),
        "columns that end early": seal(BODY[:-4], 3, **TIMES),
        "columns with more behind": seal(BODY + b"\xc0", 3, **TIMES),
        "columns nested without end": seal(b"\x91" * 50_000 + b"\xc0", 3, **TIMES),
        "an announced array without elements": seal(b"\xdd\xff\xff\xff\xff", 3, **TIMES),
        "a pickle for columns": seal(pickled(os.devnull), 3, **TIMES),
        "four columns": columns(arity=4),
        "values that are a number": columns((3, 7)),
        "no values": columns((3, None)),
        "offsets that fall": columns((3, [None, int32s(0, 5, 3, 5), b"value"])),
        "offsets beyond the data": columns((3, [None, int32s(0, 5, 5, 500), b"value"])),
        "negative offsets": columns((3, [None, int32s(-4, 5, 5, 5), b"value"])),
        "too few offsets": columns((3, [None, int32s(0, 5), b"value"])),
        "a validity bitmap of no bytes": columns((3, [b"", int32s(0, 5, 5, 5), b"value"])),
        "offset deltas beyond the last": columns((0, int32s(0, 1, 77))),
        "offset deltas that fall": columns((0, int32s(2, 1, 0))),
        "timestamps of another length": columns((1, struct.pack("<q", 1))),
        "headers that are none": columns((4, [int32s(0, 9, 9, 9), None, None])),
    }


def pickled(path: str) -> bytes:
    """A pickle that creates a folder when it is loaded, which must never happen."""
    return pickle.dumps(_Bomb(path))


class _Bomb:
    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._path,)


def noise(seed: int, size: int = 2000) -> bytes:
    return random.Random(seed).randbytes(size)


@dataclass(frozen=True)
class State:
    """The state that invalid input must not change."""

    ends: tuple[tuple[int, int], ...]
    leader_epochs: tuple[int, ...]
    term: int
    incarnations: tuple[int, ...]
    topics: tuple[str, ...]
    pids: tuple[int, ...]


async def state_of(cluster: LocalCluster, admin: Admin, topic: str) -> State:
    """The cluster's state, as its quorum and one topic report it."""
    partitions = (await admin.describe_topic(topic)).partitions
    ranges = [await admin.offsets(topic, p.partition) for p in partitions]
    return State(
        tuple((r.earliest, r.latest) for r in ranges),
        tuple(p.leader_epoch for p in partitions),
        (await admin.quorum()).term,
        tuple(node.incarnation for node in (await admin.cluster()).nodes),
        tuple(found.name for found in await admin.list_topics()),
        tuple(node.process.pid for node in cluster.nodes if node.process is not None and node.running),
    )
