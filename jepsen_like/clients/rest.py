"""The client of `rest`: producers and consumers of the REST Proxy API (version 2) behind a round robin of all nodes.

Every request goes to the next node, as a load balancer sends it; a node that accepts no connection is passed over. A
consumer is used by any process, by its name. A read that did not arrive as a whole was certainly not delivered
(`http_requests.py`); all other requests without an answer have an unknown outcome.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

import msgspec

from raftlog.client import Admin, Consumer
from raftlog.errors import RaftlogError

from .http_requests import Broken, CutKind, HttpAnswer, NotSent, exchange
from .log import split
from .messages import CertainlyNot, OutcomeUnknown, Told
from .process import ClientSettings

BINARY = "application/vnd.kafka.binary.v2+json"
V2 = "application/vnd.kafka.v2+json"
READ_MS = 300
"""The wait of a read for records."""
ANSWER_BYTES = 200_000
VALUE_BYTES = 1_000
"""So large that answers are longer than what a kernel takes for a program that does not read."""
REQUEST_PART = 0.7
"""Part of an operation's time for one request."""
POLL_SECONDS = 0.1
DUMP_RECORDS = 2_000
TEMPORARY = 50003
"""The error of a request that certainly had no effect."""
TOLD_CHARACTERS = 200


class RestClient:
    def __init__(self, settings: ClientSettings) -> None:
        self._bootstrap = list(settings.bootstrap)
        self._seconds = settings.timeout * REQUEST_PART
        self._turn = settings.process
        self._group = f"rest-{settings.options['tag']}"
        (self._topic,) = settings.options["topics"]

    async def invoke(self, f: str, value: Any, hint: Mapping[str, Any]) -> Told:
        match f:
            case "send":
                return await self._send(*value)
            case "read":
                return await self._read(value[0], hint.get("cut", ""))
            case "commit":
                return await self._commit(*value)
            case "offsets":
                return await self._offsets(*value)
            case "open":
                return await self._open(value)
            case "delete":
                return await self._changed("DELETE", f"/consumers/{self._group}/instances/{value}", None, value)
            case "dump":
                return Told("ok", [value[0], await self._dump(value[0])])
        raise ValueError(f"rest has no operation {f}")

    async def close(self) -> None:
        """Nothing: every request has a connection of its own."""

    # --- Requests -----------------------------------------------------------------------------------------------------

    async def _ask(
        self, method: str, target: str, document: Any = None, given: str = V2, accepted: str = V2, cut: CutKind = ""
    ) -> HttpAnswer:
        """Ask the next node that accepts a connection. Raises `CertainlyNot` if none does, and `Broken`."""
        body = b"" if document is None else msgspec.json.encode(document)
        headers = {"Accept": accepted, **({"Content-Type": given} if body else {})}
        why = ""
        for _ in self._bootstrap:
            node = self._bootstrap[self._turn % len(self._bootstrap)]
            self._turn += 1
            try:
                return await exchange(node, method, target, headers, body, seconds=self._seconds, cut=cut)
            except NotSent as error:
                why = str(error)
        raise CertainlyNot(f"no node accepts connections: {why}")

    async def _looked(self, target: str, accepted: str, cut: CutKind = "") -> HttpAnswer:
        try:
            return await self._ask("GET", target, accepted=accepted, cut=cut)
        except Broken as error:
            raise CertainlyNot(str(error)) from None

    async def _changed(self, method: str, target: str, document: Any, value: Any, given: str = V2) -> Told:
        try:
            answer = await self._ask(method, target, document, given)
        except Broken as error:
            raise OutcomeUnknown(str(error)) from None
        return Told("ok", value) if answer.status < 300 else _refused(answer)

    # --- Records ------------------------------------------------------------------------------------------------------

    async def _send(self, key: str, values: list[int]) -> Told:
        """Append records to one partition. Its answer has an entry for each of them, and they are one batch."""
        topic, partition = split(key)
        records = [{"value": base64.b64encode(encoded(value)).decode(), "partition": partition} for value in values]
        try:
            answer = await self._ask("POST", f"/topics/{topic}", {"records": records}, BINARY)
        except Broken as error:
            raise OutcomeUnknown(str(error)) from None
        if answer.status != 200:
            return _refused(answer)
        entries = msgspec.json.decode(answer.body)["offsets"]
        codes = {entry["error_code"] for entry in entries}
        if codes != {None}:
            kind: Any = "fail" if codes == {TEMPORARY} else "info"
            return Told(kind, error={"entries": entries[:1]})
        return Told("ok", [key, [[entry["offset"], value] for entry, value in zip(entries, values, strict=True)]])

    async def _read(self, name: str, cut: CutKind) -> Told:
        target = f"{self._instance(name)}/records?timeout={READ_MS}&max_bytes={ANSWER_BYTES}"
        answer = await self._looked(target, BINARY, cut)
        if answer.status != 200:
            return _refused(answer)
        found: dict[str, list[list[int]]] = {}
        for one in msgspec.json.decode(answer.body):
            pairs = found.setdefault(f"{one['topic']}/{one['partition']}", [])
            pairs.append([one["offset"], decoded(base64.b64decode(one["value"]))])
        return Told("ok", [name, found])

    async def _dump(self, key: str) -> list[list[int]]:
        """Return offset and value of every record of a partition, by the native client and without a group."""
        topic, partition = split(key)
        found: list[list[int]] = []
        try:
            async with Admin(self._bootstrap) as admin:
                end = (await admin.offsets(topic, partition)).latest
            async with Consumer(self._bootstrap, topic, [partition], {partition: "earliest"}) as reader:
                while reader.positions.get(partition, 0) < end:
                    for record in await reader.poll(DUMP_RECORDS, timeout=POLL_SECONDS):
                        found.append([record.offset, decoded(record.value or b"-1")])
                    await asyncio.sleep(0)
        except RaftlogError as error:
            raise CertainlyNot(str(error)) from None
        return found

    # --- Consumers ----------------------------------------------------------------------------------------------------

    def _instance(self, name: str) -> str:
        return f"/consumers/{self._group}/instances/{name}"

    async def _open(self, name: str) -> Told:
        """Create the consumer, or take it over, and subscribe."""
        settings = {"name": name, "format": "binary", "auto.offset.reset": "earliest", "auto.commit.enable": "false"}
        made = await self._changed("POST", f"/consumers/{self._group}", settings, name)
        if made.kind != "ok":
            return made
        told = await self._subscribe(name)
        # It exists now, with or without its subscription.
        return told if told.kind == "ok" else Told("info", error=told.error)

    async def _subscribe(self, name: str) -> Told:
        try:
            return await self._changed("POST", f"{self._instance(name)}/subscription", {"topics": [self._topic]}, name)
        except CertainlyNot as error:
            return Told("fail", error=str(error))

    async def _commit(self, name: str, processed: Mapping[str, int] | None) -> Told:
        """Commit what was delivered, or by number the records that were processed."""
        offsets = None
        if processed is not None:
            places = [(*split(key), offset) for key, offset in processed.items()]
            offsets = {"offsets": [{"topic": t, "partition": p, "offset": offset} for t, p, offset in places]}
        return await self._changed("POST", f"{self._instance(name)}/offsets", offsets, [name, processed])

    async def _offsets(self, name: str, keys: list[str]) -> Told:
        """Return the committed offsets of the keys, read through the quorum's log (S7); -1: none."""
        query = "&".join(f"topic={topic}&partition={partition}" for topic, partition in map(split, keys))
        answer = await self._looked(f"{self._instance(name)}/offsets?{query}", V2)
        if answer.status != 200:
            return _refused(answer)
        told = msgspec.json.decode(answer.body)["offsets"]
        return Told("ok", [name, {f"{one['topic']}/{one['partition']}": one["offset"] for one in told}])


def encoded(value: int) -> bytes:
    """Return a record's value: the number, and bytes that make the record large."""
    return b"%d " % value + b"." * VALUE_BYTES


def decoded(value: bytes) -> int:
    """Return the number of a record; -1 if its value is not whole."""
    digits, _, rest = value.partition(b" ")
    return int(digits) if rest == b"." * VALUE_BYTES else -1


def _refused(answer: HttpAnswer) -> Told:
    """Return the outcome that an error reports: without effect, unless the node failed in a way that leaves it open."""
    document = msgspec.json.decode(answer.body)
    code = document["error_code"]
    kind: Any = "info" if answer.status >= 500 and code != TEMPORARY else "fail"
    return Told(kind, error={"status": answer.status, "code": code, "message": document["message"][:TOLD_CHARACTERS]})
