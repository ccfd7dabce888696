"""Links between nodes that are cut, slow, stalled, reset and late: the arriving bytes, their times,
and the counters.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from jepsen_like.clusters import pipe, proxy
from jepsen_like.clusters.commands import CommandFailed
from jepsen_like.clusters.firewall import packets, rules
from jepsen_like.clusters.links import all_links, ends, link
from jepsen_like.clusters.proxy import LinksFacts, ProxyLinks
from raftlog.model import Endpoint
from tests.support.clusters.held_port import HOST, HeldPort

PATIENCE_S = 20.0
LOOK_S = 0.05
"""The time for which it is observed that nothing arrives."""


class Peer:
    """A node that is dialed: it records the bytes of each connection, and can answer."""

    def __init__(self) -> None:
        self.came: list[bytearray] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.ended: list[bool] = []
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._port = HeldPort()
        self.endpoint = Endpoint(HOST, self._port.number)

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._take, HOST, self._port.number)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.came)
        self.came.append(bytearray())
        self.writers.append(writer)
        self.ended.append(False)
        await self._tell()
        try:
            while data := await reader.read(65536):
                self.came[number] += data
                await self._tell()
        except OSError:
            pass  # a reset is an end, too
        self.ended[number] = True
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, holds: object) -> None:
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(holds)  # type: ignore[arg-type]

    async def stop(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def close(self) -> None:
        await self.stop()
        self._port.release()


class Pair:
    """n1 dials n2 through the proxy."""

    def __init__(self) -> None:
        self.links = ProxyLinks(["n1", "n2"], random.Random(1))
        self.n2 = Peer()
        self._at = Endpoint("", 0)
        self._dialled: list[asyncio.StreamWriter] = []

    async def open(self) -> None:
        await self.n2.listen()
        await self.links.listen("n1>n2", Endpoint("127.0.0.1", 0), self.n2.endpoint)
        port = self.links._servers[0].sockets[0].getsockname()[1]
        self._at = Endpoint("127.0.0.1", port)

    async def dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self._at.host, self._at.port)
        self._dialled.append(writer)
        return reader, writer

    async def connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """And carried through to n2."""
        count = len(self.n2.came)
        reader, writer = await self.dial()
        writer.write(b"hello ")
        await self.n2.until(lambda: len(self.n2.came) > count and self.n2.came[count] == b"hello ")
        return reader, writer

    async def close(self) -> None:
        for writer in self._dialled:
            writer.transport.abort()
        await self.links.close()
        await self.n2.close()


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[Pair]:
    made = Pair()
    await made.open()
    yield made
    await made.close()
    assert made.links.facts() == LinksFacts(tasks=0, connections=0, waiting_bytes={}), "something of a proxy is left"


async def nothing_comes(reader: asyncio.StreamReader) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(LOOK_S):
            await reader.read(1)


async def gone(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read(1) == b""


async def test_bytes_go_both_ways_and_an_end_is_passed_on(pair: Pair) -> None:
    reader, writer = await pair.connected()
    pair.n2.writers[0].write(b"answer")
    assert await reader.readexactly(6) == b"answer"
    writer.write_eof()
    await pair.n2.until(lambda: pair.n2.ended == [True])
    pair.n2.writers[0].write(b"last words")
    assert await reader.readexactly(10) == b"last words"
    pair.n2.writers[0].close()
    await gone(reader)


async def test_a_cut_holds_one_direction_whichever_side_dialled_and_a_heal_delivers_in_order(pair: Pair) -> None:
    reader, writer = await pair.connected()
    await pair.links.cut(["n2>n1"])
    pair.n2.writers[0].write(b"answer")
    writer.write(b"there")
    await pair.n2.until(lambda: pair.n2.came[0] == b"hello there")
    await nothing_comes(reader)
    assert await pair.links.stopped() == {"n2>n1": 6}
    await pair.links.cut(["n1>n2"])
    assert await reader.readexactly(6) == b"answer"
    writer.write(b" and more")
    writer.write_eof()
    await asyncio.sleep(LOOK_S)
    assert pair.n2.came[0] == b"hello there"
    assert await pair.links.stopped() == {"n1>n2": 9}
    await pair.links.heal()
    await pair.n2.until(lambda: pair.n2.came[0] == b"hello there and more" and pair.n2.ended[0])
    assert await pair.links.stopped() == {}


async def test_a_connection_over_a_cut_link_seems_to_be_opened_and_stalls(pair: Pair) -> None:
    await pair.links.cut(["n1>n2", "n2>n1"])
    _, writer = await pair.dial()
    writer.write(b"anybody?")
    await pair.n2.until(lambda: len(pair.n2.came) == 1)
    await asyncio.sleep(LOOK_S)
    assert pair.n2.came == [b""]
    await pair.links.heal()
    await pair.n2.until(lambda: pair.n2.came[0] == b"anybody?")


async def test_delayed_pieces_stay_in_order_and_take_their_time(pair: Pair) -> None:
    _, writer = await pair.connected()
    pair.links.slow(["n1>n2"], 0.05, 0.04)
    began = asyncio.get_running_loop().time()
    for number in range(10):
        writer.write(b"%d" % number)
        await writer.drain()
        await asyncio.sleep(0.002)
    await pair.n2.until(lambda: pair.n2.came[0] == b"hello 0123456789")
    assert asyncio.get_running_loop().time() - began >= 0.01
    assert pair.links.conditions["n1>n2"].delayed_pieces >= 1
    assert pair.links.conditions["n2>n1"].delayed_pieces == 0


async def test_stalled_connections_deliver_nothing_and_others_continue(pair: Pair) -> None:
    _, first = await pair.connected()
    pair.links.stall(["n1>n2"], random.Random(1), share=1.0)
    _, second = await pair.connected()
    first.write(b"lost?")
    second.write(b"fine")
    await pair.n2.until(lambda: pair.n2.came[1] == b"hello fine")
    async with asyncio.timeout(PATIENCE_S):
        while pair.links.stalled() != {"n1>n2": 5}:  # noqa: ASYNC110 - bytes on their way have no event
            await asyncio.sleep(0.001)
    assert pair.n2.came[0] == b"hello "
    await pair.links.heal()
    await pair.n2.until(lambda: pair.n2.came[0] == b"hello lost?")
    assert pair.links.stalled() == {}


async def test_a_reset_ends_both_sides_and_is_counted(pair: Pair) -> None:
    reader, _ = await pair.connected()
    assert pair.links.reset(["n2>n1"]) == {}, "nobody dialled there"
    assert pair.links.reset(["n1>n2"]) == {"n1>n2": 1}
    await gone(reader)
    await pair.n2.until(lambda: pair.n2.ended == [True])
    _, again = await pair.connected()
    assert not again.is_closing()


async def test_bytes_of_a_broken_connection_arrive_after_they_were_sent_again(pair: Pair) -> None:
    reader, writer = await pair.connected()
    pair.links.linger(["n1>n2"], 0.02, 0.1)
    writer.write(b"old")
    async with asyncio.timeout(PATIENCE_S):
        while pair.links.facts().waiting_bytes.get("n1>n2") != 3:  # noqa: ASYNC110 - bytes on their way have no event
            await asyncio.sleep(0.001)
    assert pair.links.reset(["n1>n2"]) == {"n1>n2": 1}
    await gone(reader)
    _, again = await pair.dial()
    again.write(b"old")
    await pair.n2.until(lambda: len(pair.n2.came) == 2 and pair.n2.came[1] == b"old")
    assert pair.n2.came[0] == b"hello " and not pair.n2.ended[0], "the receiver knows of no end yet"
    await pair.n2.until(lambda: pair.n2.came[0] == b"hello old" and pair.n2.ended[0])
    assert pair.links.conditions["n1>n2"].lingered_bytes == 3


async def test_held_bytes_are_bounded(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe, "WAITING_BYTES_MAX", 100_000)
    _, writer = await pair.connected()
    await pair.links.cut(["n1>n2"])
    writer.transport.set_write_buffer_limits(high=0)
    sent = 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            while sent < 100_000_000:
                writer.write(bytes(500_000))
                sent += 500_000
                await writer.drain()
    assert 100_000 < pair.links.facts().waiting_bytes["n1>n2"] <= 100_000 + pipe.READ_BYTES
    await pair.links.heal()
    await pair.n2.until(lambda: len(pair.n2.came[0]) == 6 + sent)


async def test_one_connection_too_many_is_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "CONNECTIONS_MAX", 1)
    await pair.connected()
    reader, _ = await pair.dial()
    await gone(reader)


async def test_a_node_that_is_down_refuses_and_a_dead_one_ends_its_connections(pair: Pair) -> None:
    reader, _ = await pair.connected()
    await pair.n2.stop()
    await gone(reader)
    reader, _ = await pair.dial()
    await gone(reader)


# --- Packets ----------------------------------------------------------------------------------------------------------


def test_links_have_two_ends() -> None:
    assert ends(link("n1", "n2")) == ("n1", "n2")
    assert sorted(all_links(["n1", "n2", "n3"])) == ["n1>n2", "n1>n3", "n2>n1", "n2>n3", "n3>n1", "n3>n2"]


def test_rules_replace_former_ones_and_name_what_they_count() -> None:
    text = rules({"n2>n1": "10.77.1.11"})
    assert text.index("delete table inet raftlog_faults") < text.index("chain input")
    assert 'ip saddr 10.77.1.11 counter drop comment "n2>n1"' in text
    assert "drop" not in rules({})


def test_counters_are_read_by_link() -> None:
    listing = """{"nftables": [{"metainfo": {}}, {"table": {}}, {"rule": {"comment": "n2>n1", "expr":
        [{"match": {}}, {"counter": {"packets": 7, "bytes": 420}}, {"drop": null}]}}]}"""
    assert packets(listing) == {"n2>n1": 7}
    for wrong in ("", "[]", '{"nftables": [{"rule": {"expr": []}}]}', '{"nftables": 7}'):
        with pytest.raises(CommandFailed, match="unreadable"):
            packets(wrong)
