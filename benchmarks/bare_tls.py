"""The limit of a consumer under TLS: a file from the page cache, encrypted, to a reader that decrypts and drops it.

    python benchmarks/bare_tls.py --bytes 4e9

One connection on the loopback, one process at each end, pieces of `PIECE_BYTES` as a node reads them. Four ways:

* `sendfile`: no TLS, as without security (`bare_sendfile.py`);
* `copied`: no TLS, but the bytes pass through Python;
* `tls, memory`: encrypted into memory and then sent, and decrypted from memory, as asyncio does at both ends;
* `tls, socket`: the library reads and writes the sockets itself.

The difference between the first two is the loss of `sendfile`, between the second and the third the cost of TLS. Kernel
TLS would keep `sendfile`; the first line says whether this kernel has it (Linux: the protocol `tls` over TCP).
"""

from __future__ import annotations

import argparse
import datetime
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bare_loop import MIB, incompressible
from bare_sendfile import send_all
from measuring import console, machine, middle

from raftlog.cli.nodes.certificates import create_authority, create_certificate
from raftlog.http2.tls import PIECE_BYTES

WAYS = ("sendfile", "copied", "tls, memory", "tls, socket")
TCP_ULP = 31
"""linux/tcp.h: the option that puts a protocol of the kernel on top of a TCP connection."""
READ_BYTES = 256 * 1024
"""Bytes that the reader takes from the socket at once, as asyncio does."""
SINK = f"""
import socket, ssl, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
way, buffer = sys.argv[2], bytearray({READ_BYTES})
context = None if way == "copied" else ssl.create_default_context(cafile=sys.argv[3])
if way == "tls, memory":
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    while True:
        try:
            tls.do_handshake()
            break
        except ssl.SSLWantReadError:
            sock.sendall(outgoing.read())
            incoming.write(sock.recv({READ_BYTES}))
    sock.sendall(outgoing.read())
    while count := sock.recv_into(buffer):
        incoming.write(memoryview(buffer)[:count])
        try:
            while tls.read({READ_BYTES}):
                pass
        except ssl.SSLWantReadError:
            pass
else:
    if context is not None:
        sock = context.wrap_socket(sock, server_hostname="127.0.0.1")
    while sock.recv_into(buffer):
        pass
"""


def kernel_tls() -> str:
    """Return whether the kernel encrypts for a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        try:
            one.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
        except OSError as error:
            return f"not available here ({error.strerror})"
    return "available"


def contexts(folder: str) -> tuple[ssl.SSLContext, str]:
    """Return a server's context with a new certificate, and the file of its authority."""
    now = datetime.datetime.now(datetime.UTC)
    authority = create_authority("benchmark", 1, now)
    certificate, key = create_certificate(authority, ("IP:127.0.0.1",), 1.0, now)
    files = {"authority.pem": authority[0], "node.pem": certificate, "node.key": key}
    for name, content in files.items():
        (Path(folder) / name).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{folder}/node.pem", f"{folder}/node.key")
    return context, f"{folder}/authority.pem"


def pieces(descriptor: int, file_bytes: int, total_bytes: int) -> Iterator[bytes]:
    """Read the file repeatedly, in pieces, up to a total."""
    sent = 0
    while sent < total_bytes:
        yield os.pread(descriptor, min(PIECE_BYTES, total_bytes - sent), sent % file_bytes)
        sent += PIECE_BYTES


def send(way: str, file_bytes: int, total_bytes: int) -> float:
    """Return the bytes per second from the first piece until the reader has received the last byte."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as file,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        context, authority = contexts(folder)
        file.write(incompressible(file_bytes))
        file.flush()
        child = subprocess.Popen([sys.executable, "-c", SINK, str(server.getsockname()[1]), way, authority])
        try:
            server.settimeout(30.0)
            connection, _ = server.accept()
            connection.settimeout(30.0)
            rate = _send(way, context, connection, pieces(file.fileno(), file_bytes, total_bytes))
        finally:
            child.kill()
            child.wait()
        return total_bytes / rate


def _send(way: str, context: ssl.SSLContext, connection: socket.socket, content: Iterator[bytes]) -> float:
    """Return the seconds that it took."""
    if way == "tls, memory":
        return _send_from_memory(context, connection, content)
    stream = context.wrap_socket(connection, server_side=True) if way == "tls, socket" else connection
    with stream:
        started = time.perf_counter()
        for piece in content:
            stream.sendall(piece)
        return _ended(stream, started)


def _send_from_memory(context: ssl.SSLContext, connection: socket.socket, content: Iterator[bytes]) -> float:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    with connection:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                if outgoing.pending:
                    connection.sendall(outgoing.read())
                incoming.write(connection.recv(READ_BYTES))
        connection.sendall(outgoing.read())
        started = time.perf_counter()
        for piece in content:
            tls.write(piece)
            connection.sendall(outgoing.read())
        return _ended(connection, started)


def _ended(connection: socket.socket, started: float) -> float:
    """Wait until the reader has everything and closes its end."""
    raw = socket.socket(fileno=os.dup(connection.fileno()))
    with raw:
        raw.settimeout(30.0)
        raw.shutdown(socket.SHUT_WR)
        while raw.recv(READ_BYTES):
            pass  # The last messages of TLS.
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=float, default=4e9, help="bytes to send (default 4e9)")
    parser.add_argument(
        "--file-bytes", type=float, default=256 * MIB, help="size of the file, which is sent repeatedly"
    )
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    total, size = round(options.bytes), round(options.file_bytes)
    size -= size % PIECE_BYTES
    console.print(f"kernel TLS: {kernel_tls()}; {ssl.OPENSSL_VERSION}; {machine()}")
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(options.runs):
        for way in WAYS:
            found[way].append(send_all(None, size, total) if way == "sendfile" else send(way, size, total))
    for way, rates in found.items():
        share = middle(rates) / middle(found["sendfile"])
        console.print(f"{way:12} {middle(rates) / 1e6:8,.0f} MB/s, {share:.2f} of sendfile")


if __name__ == "__main__":
    main()
