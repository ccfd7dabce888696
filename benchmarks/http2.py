"""Messages over the HTTP/2 transport, one way and round trip, between two processes on the loopback.

    python benchmarks/http2.py                 # every size, 1 s each
    python benchmarks/http2.py --seconds 3 --sizes 65536 1048576

One way: the sender passes the same buffers repeatedly while less than 4 MiB are queued; the clock stops when the
receiver has answered with its count, which must equal the sender's. "s/GB" is one side's own CPU time for each GB. For
comparison, the same bytes are sent in the same run by plain blocking sockets (`sendall`, `recv_into`) between two
processes, without a protocol or an event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from raftlog.http2 import Http2Connection, Http2Listener, Http2Stream, connect

WAITING_BYTES = 4 * 1024 * 1024
SIZES = (4 * 1024, 64 * 1024, 256 * 1024, 1024 * 1024)
PING_BYTES = 21
SAMPLES = 4_000


@dataclass
class Row:
    size: int
    messages: int
    seconds: float
    sender_cpu: float
    receiver_cpu: float

    def __str__(self) -> str:
        gigabytes = self.messages * self.size / 1e9
        ours, theirs = self.sender_cpu, self.receiver_cpu
        return (
            f"{self.size:>9,} B {self.messages / self.seconds:>9,.0f} messages/s "
            f"{gigabytes * 1e3 / self.seconds:>7,.0f} MB/s   CPU, sender + receiver: "
            f"{ours / gigabytes:5.2f} + {theirs / gigabytes:5.2f} s/GB, "
            f"{ours / self.messages * 1e6:5.1f} + {theirs / self.messages * 1e6:5.1f} us a message"
        )


class Sink:
    """A sink that counts messages. An empty message requests the count and this side's CPU time since the last
    request."""

    def __init__(self) -> None:
        self.count = 0
        self.cpu = time.process_time()

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        if len(message):
            self.count += 1
            return
        now = time.process_time()
        stream.send([f"{self.count} {now - self.cpu}".encode()])
        self.count, self.cpu = 0, now

    def on_ended(self, stream: Http2Stream) -> None:
        stream.end()

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        pass


class Echo(Sink):
    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        stream.send([message])


class Caller(Sink):
    """The client's side: passes each message to its waiting reader."""

    def __init__(self) -> None:
        self.receive: Callable[[memoryview], None] = lambda message: None

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        self.receive(message)


async def serve() -> None:
    listener = Http2Listener({"/sink": lambda stream: Sink(), "/echo": lambda stream: Echo()})
    port = await listener.start("127.0.0.1", 0)
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await listener.close(0.1)


async def one_way(connection: Http2Connection, size: int, seconds: float) -> Row:
    caller = Caller()
    stream = connection.open_stream("/sink", {}, caller)
    loop = asyncio.get_running_loop()
    header, body = os.urandom(16), memoryview(os.urandom(size))[16:]
    drained = asyncio.Event()
    connection.on_drained = drained.set

    async def count() -> tuple[int, float]:
        answer: asyncio.Future[bytes] = loop.create_future()
        caller.receive = lambda message: answer.set_result(bytes(message))
        stream.send([])
        messages, cpu = (await answer).split()
        return int(messages), float(cpu)

    async def run(until: float) -> int:
        sent = 0
        while time.perf_counter() < until:
            for _ in range(64):
                stream.send([header, body])
                sent += 1
                if connection.queued_bytes > WAITING_BYTES:
                    drained.clear()
                    await drained.wait()
            await asyncio.sleep(0)
        return sent

    await run(time.perf_counter() + 0.2)
    await count()
    started, cpu = time.perf_counter(), time.process_time()
    sent = await run(started + seconds)
    messages, receiver_cpu = await count()
    assert messages == sent, "messages were lost"
    row = Row(size, messages, time.perf_counter() - started, time.process_time() - cpu, receiver_cpu)
    stream.end()
    return row


async def round_trip(connection: Http2Connection) -> list[float]:
    """Return the microseconds of many round trips."""
    caller = Caller()
    stream = connection.open_stream("/echo", {}, caller)
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    message, times = os.urandom(PING_BYTES), list[float]()
    sent_at = 0.0

    def receive(answer: memoryview) -> None:
        nonlocal sent_at
        times.append((time.perf_counter() - sent_at) * 1e6)
        if len(times) == SAMPLES:
            done.set_result(None)
            return
        sent_at = time.perf_counter()
        stream.send([message])

    caller.receive = receive
    sent_at = time.perf_counter()
    stream.send([message])
    await done
    stream.end()
    return times[SAMPLES // 10 :]


def floor_one_way(size: int, seconds: float) -> Row:
    """Measure plain sockets: the same sizes by `sendall` and `recv_into`, in two processes."""
    ours, theirs = _tcp_pair()
    pid = os.fork()
    if not pid:
        ours.close()
        before, buffer, count = time.process_time(), bytearray(size), 0
        while got := theirs.recv_into(buffer):
            count += got
        theirs.sendall(f"{count // size} {time.process_time() - before}".encode())
        os._exit(0)
    theirs.close()
    body = os.urandom(size)
    started, cpu, messages = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() < started + seconds:
        ours.sendall(body)
        messages += 1
    ours.shutdown(socket.SHUT_WR)
    counted, receiver_cpu = ours.recv(100).split()
    seconds = time.perf_counter() - started
    ours.close()
    os.waitpid(pid, 0)
    assert int(counted) == messages
    return Row(size, messages, seconds, time.process_time() - cpu, float(receiver_cpu))


def floor_round_trip() -> list[float]:
    """Return the microseconds of round trips by plain blocking sockets: the cost of two processes and the kernel."""
    ours, theirs = _tcp_pair()
    pid = os.fork()
    if not pid:
        ours.close()
        while data := theirs.recv(100):
            theirs.send(data)
        os._exit(0)
    theirs.close()
    message, times = os.urandom(PING_BYTES), list[float]()
    for _ in range(SAMPLES):
        started = time.perf_counter()
        ours.send(message)
        ours.recv(100)
        times.append((time.perf_counter() - started) * 1e6)
    ours.close()
    os.waitpid(pid, 0)
    return times[SAMPLES // 10 :]


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    for sock in (ours, theirs):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return ours, theirs


def _show_round_trip(name: str, times: list[float]) -> None:
    quantiles = statistics.quantiles(times, n=100)
    print(f"{name} {PING_BYTES:>9} B round trip p50 {quantiles[49]:.0f} us, p99 {quantiles[98]:.0f} us")


async def measure(port: int, sizes: list[int], seconds: float) -> None:
    connection = await connect("127.0.0.1", port)
    _show_round_trip("http2 ", await round_trip(connection))
    for size in sizes:
        print("http2 ", await one_way(connection, size, seconds))
    connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve())
        return
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdin is not None
        asyncio.run(measure(int(server.stdout.readline()), arguments.sizes, arguments.seconds))
        server.stdin.close()
    _show_round_trip("floor ", floor_round_trip())
    for size in arguments.sizes:
        print("floor ", floor_one_way(size, arguments.seconds))


if __name__ == "__main__":
    main()
