"""One process that behaves as strangers do, for `strangers.py`: idle connections, or logins that fail.

It reads a `Job` as one line of JSON from standard input, writes `{"ready": true}` when its load has begun, and ends
with the line of a `Told` when its input ends, or after `Job.seconds` at the latest. It connects to the addresses of the
job only, and these are in 127.0.0.0/8.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import contextlib
import ipaddress
import itertools
import os
import resource
import selectors
import socket
import ssl
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from raftlog.cli.bench.pacing import Pacer
from raftlog.errors import RaftlogError
from raftlog.http2 import Http2Connection, Http2Stream, connect
from raftlog.wire import PRODUCE_PATH

MAX_CONNECTIONS = 15_000
MAX_RATE = 5_000.0
MAX_SECONDS = 600.0
SPARE_DESCRIPTORS = 100
SOURCES = 40
"""Addresses of which the strangers' connections come, so that limits of one address do not bound the load."""
CONNECTING_AT_ONCE = 256
CONNECT_SECONDS = 10.0
LOGIN_CONNECTIONS = 24
"""Connections of logins, each with one login at a time; those of `data` all come from 127.0.0.1."""
BURST = 200
"""Most logins that are made up for at once after a stall."""
LOOPBACK = ipaddress.ip_network("127.0.0.0/8")


class Job(msgspec.Struct, frozen=True):
    """The load of one process."""

    kind: str
    """`idle`: connections without a byte; `idle_tls`: after the handshake; `bearer`, `basic`, `data`: logins."""
    targets: list[tuple[str, int]]
    authority: str
    """File with the certificate of the nodes' authority."""
    count: int = 0
    """Connections to hold."""
    rate: float = 0.0
    """Logins per second; for connections: reopened ones per second."""
    seconds: float = 60.0
    user: str = "nobody"
    """The name of `basic` logins."""


class Told(msgspec.Struct):
    """The work of one process."""

    opened: int = 0
    """Connections, or logins that were sent."""
    held: float = 0.0
    """The mean number of open connections after the load had begun."""
    ended: int = 0
    """Connections that the nodes closed."""
    answers: dict[str, int] = {}
    """Answer → number: status or error code."""
    seconds: float = 0.0


def checked(job: Job) -> Job:
    """Return the job if it is within the bounds. Raises `SystemExit`."""
    if not all(ipaddress.ip_address(host) in LOOPBACK for host, _ in job.targets):
        raise SystemExit("strangers connect to 127.0.0.0/8 only")
    if job.count > MAX_CONNECTIONS or job.rate > MAX_RATE or job.seconds > MAX_SECONDS:
        raise SystemExit(f"a load has at most {MAX_CONNECTIONS} connections, {MAX_RATE} /s and {MAX_SECONDS} s")
    return job


def raise_descriptors(count: int) -> None:
    """Raise the soft limit of open files. Raises `SystemExit` if the hard limit is too low."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count + SPARE_DESCRIPTORS:
        raise SystemExit(f"{count} connections need more descriptors than the limit of {hard} (`ulimit -Hn`)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count + SPARE_DESCRIPTORS, hard))


def sources() -> Iterator[str]:
    """Return addresses of loopback, again and again."""
    return itertools.cycle([f"127.{1 + number}.{number * 7 % 250}.1" for number in range(SOURCES)])


def tell(message: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


class Stop:
    """The end of the load: of standard input, or of its time."""

    def __init__(self, seconds: float) -> None:
        self._over = threading.Event()
        self._deadline = time.monotonic() + seconds
        threading.Thread(target=self._watch, daemon=True).start()

    def __bool__(self) -> bool:
        return self._over.is_set() or time.monotonic() > self._deadline

    def _watch(self) -> None:
        while sys.stdin.buffer.read1():
            pass
        self._over.set()


class Holder:
    """Connections that are opened, held, and opened again when a node closes them."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._told = Told()
        self._selector = selectors.DefaultSelector()
        self._connecting: dict[socket.socket, float] = {}
        """Connections in progress, with the time when they are given up."""
        self._open: set[socket.socket] = set()
        self._sources, self._targets = sources(), itertools.cycle(job.targets)
        self._context: ssl.SSLContext | None = None
        if job.kind == "idle_tls":
            self._context = ssl.create_default_context(cafile=job.authority)
            self._context.check_hostname = False

    def run(self, stop: Stop) -> Told:
        """Hold the connections until the end."""
        began, ready, samples = time.monotonic(), False, 0
        attempts = Pacer(max(self._job.rate, 1.0), began)
        while not stop:
            missing = self._job.count - len(self._open) - len(self._connecting)
            room = CONNECTING_AT_ONCE - len(self._connecting)
            for _ in attempts.due(time.monotonic(), max(min(missing, room), 0)):
                self._connect()
            if missing <= 0:
                attempts = Pacer(max(self._job.rate, 1.0), time.monotonic())
            for key, _ in self._selector.select(timeout=0.02):
                assert isinstance(key.fileobj, socket.socket)
                self._step(key.fileobj)
            self._give_up_late()
            # A node may not hold the wanted number: the load has begun when that number was opened.
            if not ready and self._told.opened >= self._job.count:
                tell({"ready": True})
                ready = True
            if ready:
                samples += 1
                self._told.held += (len(self._open) - self._told.held) / samples
        self._told.seconds = time.monotonic() - began
        return self._told

    def _connect(self) -> None:
        one = socket.socket()
        one.setblocking(False)
        # The port is chosen with the target, so that each source address has all ports for each target.
        one.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
        try:
            one.bind((next(self._sources), 0))
            one.connect(next(self._targets))
        except BlockingIOError:
            pass
        except OSError:
            self._told.ended += 1
            one.close()
            return
        if self._context is not None:
            one = self._context.wrap_socket(one, do_handshake_on_connect=False)
        self._connecting[one] = time.monotonic() + CONNECT_SECONDS
        self._selector.register(one, selectors.EVENT_WRITE)

    def _step(self, one: socket.socket) -> None:
        """Continue a connection that is ready."""
        try:
            if one in self._open:
                # Nothing is expected but the end; a node's answer to strangers is dropped.
                if not one.recv(4096):
                    raise ConnectionResetError
                return
            failed = one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failed:
                raise OSError(failed, os.strerror(failed))
            if isinstance(one, ssl.SSLSocket):
                one.do_handshake()
        except (ssl.SSLWantReadError, BlockingIOError):
            self._selector.modify(one, selectors.EVENT_READ)
            return
        except ssl.SSLWantWriteError:
            self._selector.modify(one, selectors.EVENT_WRITE)
            return
        except (OSError, ValueError):
            self._drop(one)
            return
        del self._connecting[one]
        self._open.add(one)
        self._told.opened += 1
        self._selector.modify(one, selectors.EVENT_READ)

    def _drop(self, one: socket.socket) -> None:
        self._selector.unregister(one)
        self._connecting.pop(one, None)
        self._open.discard(one)
        self._told.ended += 1
        one.close()

    def _give_up_late(self) -> None:
        now = time.monotonic()
        for one in [one for one, deadline in self._connecting.items() if deadline < now]:
            self._drop(one)


class Logins:
    """Logins at a fixed rate, over connections that stay open as far as the nodes allow it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._told = Told()
        self._answers: collections.Counter[str] = collections.Counter()
        self._context = ssl.create_default_context(cafile=job.authority)
        self._due: asyncio.Queue[int] = asyncio.Queue(int(MAX_RATE))

    async def run(self, stop: Stop) -> Told:
        """Log in until the end."""
        began = time.monotonic()
        target, source = itertools.cycle(self._job.targets), sources()
        serve = self._data if self._job.kind == "data" else self._http
        works = [asyncio.create_task(self._keep(serve, next(source), *next(target))) for _ in range(LOGIN_CONNECTIONS)]
        tell({"ready": True})
        pacer = Pacer(self._job.rate, time.monotonic())
        while not stop:
            for number in pacer.due(time.monotonic(), BURST):
                # A node that answers slowly makes a backlog; more than one second of it is not sent.
                with contextlib.suppress(asyncio.QueueFull):
                    self._due.put_nowait(number)
            await asyncio.sleep(0.005)
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)
        self._told.answers = dict(self._answers)
        self._told.seconds = time.monotonic() - began
        return self._told

    async def _keep(self, serve: Callable[[str, str, int], Awaitable[None]], source: str, host: str, port: int) -> None:
        while True:
            try:
                await serve(source, host, port)
            except (OSError, EOFError, RaftlogError, TimeoutError) as error:
                self._answers[type(error).__name__] += 1
            self._told.ended += 1
            await asyncio.sleep(0.1)

    def _credential(self, number: int) -> str:
        """Return an invalid credential, another one for each login."""
        if self._job.kind == "basic":
            pair = f"{self._job.user}:wrong password {number}"
            return f"Basic {base64.b64encode(pair.encode()).decode()}"
        return f"Bearer rlt_{'a' * 12}_{base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip('=')}"

    async def _http(self, source: str, host: str, port: int) -> None:
        reader, writer = await asyncio.open_connection(host, port, ssl=self._context, local_addr=(source, 0))
        try:
            while True:
                number = await self._due.get()
                head = f"GET /v1/topics HTTP/1.1\r\nHost: {host}:{port}\r\n"
                writer.write(f"{head}Authorization: {self._credential(number)}\r\n\r\n".encode())
                self._told.opened += 1
                answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                self._answers[answer.split(" ", 2)[1]] += 1
                fields = dict(line.lower().split(": ", 1) for line in answer.split("\r\n")[1:] if ": " in line)
                await reader.readexactly(int(fields.get("content-length", "0")))
                if fields.get("connection") == "close":
                    return
        finally:
            writer.transport.abort()

    async def _data(self, source: str, host: str, port: int) -> None:
        lost = asyncio.Event()
        connection = await connect(host, port, ssl=self._context, on_closed=lambda one, reason: lost.set())
        try:
            while not lost.is_set():
                number = await self._due.get()
                await self._open(connection, number)
        finally:
            connection.abort("the end")

    async def _open(self, connection: Http2Connection, number: int) -> None:
        waiting: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        connection.open_stream(PRODUCE_PATH, {"authorization": self._credential(number)}, Refused(waiting))
        self._told.opened += 1
        async with asyncio.timeout(CONNECT_SECONDS):
            self._answers[await waiting] += 1


class Refused:
    """The handler of a stream that is refused."""

    def __init__(self, waiting: asyncio.Future[str]) -> None:
        self._waiting = waiting

    def on_message(self, stream: Http2Stream, message: memoryview) -> None:
        """Ignore what a node sends."""

    def on_ended(self, stream: Http2Stream) -> None:
        """Ignore the end of the node's half."""

    def on_closed(self, stream: Http2Stream, reason: str) -> None:
        if not self._waiting.done():
            self._waiting.set_result("refused" if "unauthenticated" in reason else reason[:60])


def main() -> None:
    job = checked(msgspec.json.decode(sys.stdin.buffer.readline(), type=Job))
    stop = Stop(job.seconds)
    if job.kind.startswith("idle"):
        raise_descriptors(job.count)
        tell(Holder(job).run(stop))
    else:
        tell(asyncio.run(Logins(job).run(stop)))


if __name__ == "__main__":
    main()
