"""The physical limit of a consumer: `sendfile` from the page cache into a socket whose reader drops the data.

    python benchmarks/bare_sendfile.py --bytes 4e9

One file, one TCP connection on the loopback, one process at each end; the reader receives into one buffer and does not
look at the bytes. A broker can serve one consumer on the same machine at most at this rate. `table.py` runs this beside
the consumers.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time

from bare_loop import MIB, incompressible
from measuring import console, machine, middle

READ_BYTES = MIB
SEND_BYTES = 16 * MIB
SINK = f"""
import socket, sys
sock, buffer = socket.create_connection(("127.0.0.1", int(sys.argv[1]))), bytearray({READ_BYTES})
while sock.recv_into(buffer):
    pass
"""


def send_all(folder: str | None, file_bytes: int, total_bytes: int) -> float:
    """Return the bytes per second from the first `sendfile` until the reader has received the last byte. The file is
    sent repeatedly, up to `total_bytes`."""
    with tempfile.TemporaryFile(dir=folder) as file, socket.create_server(("127.0.0.1", 0)) as server:
        file.write(incompressible(file_bytes))
        file.flush()
        child = subprocess.Popen([sys.executable, "-c", SINK, str(server.getsockname()[1])])
        try:
            server.settimeout(30.0)
            connection, _ = server.accept()
            with connection:
                connection.setblocking(True)
                started, sent = time.perf_counter(), 0
                while sent < total_bytes:
                    start = sent % file_bytes
                    sent += os.sendfile(connection.fileno(), file.fileno(), start, min(SEND_BYTES, file_bytes - start))
                connection.shutdown(socket.SHUT_WR)
                assert not connection.recv(1), "the reader writes nothing"
                return sent / (time.perf_counter() - started)
        finally:
            child.kill()
            child.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=float, default=4e9, help="bytes to send (default 4e9)")
    parser.add_argument("--file-bytes", type=float, default=1e9, help="size of the file, which is sent repeatedly")
    parser.add_argument(
        "--folder", default=None, help="folder on the disk to measure (default: that of temporary files)"
    )
    parser.add_argument("--runs", type=int, default=3, help="number of runs; the median counts")
    options = parser.parse_args()
    rates = [send_all(options.folder, int(options.file_bytes), int(options.bytes)) for _ in range(options.runs)]
    console.print(f"{middle(rates) / 1e6:,.0f} MB/s, {middle(rates) / 100:,.0f} 100-byte records/s; {machine()}")


if __name__ == "__main__":
    main()
