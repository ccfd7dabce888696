"""Probes of the machine's capabilities, on resources that are created for the probe and removed again.

Each probe exercises what a fault would need and returns if it worked; otherwise it raises `CommandFailed`, `OSError` or
`PowerLossUnavailable`. Probes block, for tens of milliseconds each.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import clocks, disk_faults, system_calls
from .commands import CommandFailed, run
from .descriptors import limit_leaving, open_numbers, set_soft_limit, soft_limit
from .firewall import nft, packets, rules
from .leftovers import remove_interface, remove_namespace
from .ownership import Subnet, Tag
from .power_loss import Survivors, Volume, Volumes

SMALL_IMAGE_BYTES = 8 * 1024 * 1024
PROBE_SECONDS = 20.0
FAKED_SECONDS = 600
FEW = 64
"""Descriptors."""


def root() -> None:
    if os.geteuid() != 0:
        raise CommandFailed("this process does not run as root")


def loopback() -> None:
    """Bind an address of 127.0.0.0/8: Linux has all of them without configuration, other systems only one."""
    subnet = Subnet()
    try:
        with socket.socket() as listening:
            listening.bind((subnet.loopback(1), 0))
    finally:
        subnet.close()


def namespaces() -> None:
    """Create a bridge, and a namespace with one end of a pair of interfaces."""
    tag = Tag.new()
    bridge, outer = tag.interface("br"), tag.interface("n1")
    with _namespace(tag) as name:
        try:
            run("ip", "link", "add", bridge, "type", "bridge")
            run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", outer, "master", bridge)
            run("nsenter", f"--net=/run/netns/{name}", "--", "ip", "link", "set", "lo", "up")
        finally:
            remove_interface(outer)
            remove_interface(bridge)


def nftables() -> None:
    """Load a rule that drops and counts."""
    with _namespace(Tag.new()) as name:
        nft(name, "-f", "-", given=rules({"n1>n2": "10.77.0.1"}))
        counted = packets(nft(name, "-j", "list", "ruleset"))
        if counted != {"n1>n2": 0}:
            raise CommandFailed(f"nft lists other rules than it was given: {counted}")


def power_loss() -> None:
    """Cut the power of a small disk, with the proof."""
    with _volume() as volume:
        volume.cut(Survivors.NOTHING, random.Random(0))
        volume.restore()


def read_only() -> None:
    """Make a mounted ext4 turn read-only, repair it, and write to it."""
    with _volume() as volume:
        disk_faults.turn_read_only(volume)
        refused = disk_faults.refusal(volume)
        if refused not in {errno.EROFS, errno.EIO}:
            raise CommandFailed(f"a file system that found an error can still be written: {refused}")
        disk_faults.repair(volume)
        if disk_faults.refusal(volume) is not None:
            raise CommandFailed("a repaired file system cannot be written")


def faketime() -> None:
    """Change the wall clock of a running program, and not its monotonic clock."""
    preload = clocks.library()
    if preload is None:
        raise CommandFailed(f"{clocks.LIBRARY} is not installed")
    with tempfile.TemporaryDirectory() as folder:
        faked = clocks.Clocks(Path(folder), ["n1"], preload)
        code = "import sys, time\nfor _ in sys.stdin: print(time.time(), time.monotonic(), flush=True)"
        with _child(code, {**os.environ, **faked.environment("n1")}) as ask:
            ask()
            faked.set("n1", FAKED_SECONDS)
            wall, monotonic = (float(text) for text in ask().split())
        ahead = wall - time.time()
        if abs(ahead - FAKED_SECONDS) > PROBE_SECONDS or abs(monotonic - time.monotonic()) > PROBE_SECONDS:
            raise CommandFailed(f"libfaketime set the wall clock {ahead:.0f} s ahead instead of {FAKED_SECONDS}")


def time_namespace() -> None:
    """Run a program with another monotonic clock."""
    code = "import time; print(time.monotonic())"
    command = (sys.executable, "-P", "-m", "jepsen_like.clusters.time_namespace", str(FAKED_SECONDS))
    ahead = float(run(*command, sys.executable, "-c", code)) - time.monotonic()
    if abs(ahead - FAKED_SECONDS) > PROBE_SECONDS:
        raise CommandFailed(f"a time namespace set the monotonic clock {ahead:.0f} s ahead instead of {FAKED_SECONDS}")


def strace() -> None:
    """Inject a failing fsync into a running program."""
    with tempfile.TemporaryDirectory() as folder:
        path, trace = Path(folder) / "file", Path(folder) / "trace"
        code = (
            "import os, sys\n"
            f"file = os.open({str(path)!r}, os.O_RDWR | os.O_CREAT)\n"
            "for _ in sys.stdin:\n"
            "    try:\n"
            "        os.fdatasync(file)\n"
            "        print(0, flush=True)\n"
            "    except OSError as error:\n"
            "        print(error.errno, flush=True)\n"
        )
        with _child(code, dict(os.environ)) as ask:
            ask()
            injection = system_calls.Injection(ask.pid, trace, "error=EIO")
            injection.begin()
            try:
                answer = ask()
            finally:
                injection.end()
            after, told = ask(), injection.count()
    if (answer, after, told) != (str(errno.EIO), "0", 1):
        raise CommandFailed(
            f"an injected fsync failure returned {answer}, afterwards {after}, and was traced {told} times"
        )


def descriptors() -> None:
    """Exhaust the descriptors of a running program and release them; start another program with few."""
    if sys.platform != "linux":
        raise CommandFailed("limits of another process can be changed on Linux only")
    code = (
        "import os, sys\n"
        "for _ in sys.stdin:\n"
        "    try:\n"
        "        os.close(os.open('/dev/null', os.O_RDONLY))\n"
        "        print(0, flush=True)\n"
        "    except OSError as error:\n"
        "        print(error.errno, flush=True)\n"
    )
    with _child(code, dict(os.environ)) as ask:
        answers = [ask()]
        before, taken = soft_limit(ask.pid), open_numbers(ask.pid)
        set_soft_limit(ask.pid, limit_leaving(0, taken))
        answers.append(ask())
        set_soft_limit(ask.pid, before)
        answers.append(ask())
    if answers != ["0", str(errno.EMFILE), "0"]:
        raise CommandFailed(f"opening a file returned {answers} before, during and after the limit of descriptors")
    told = run("prlimit", f"--nofile={FEW}:{FEW}", "sh", "-c", "ulimit -n").strip()
    if told != str(FEW):
        raise CommandFailed(f"a program that was to start with {FEW} descriptors has {told}")


@contextmanager
def _namespace(tag: Tag) -> Iterator[str]:
    name = tag.namespace("probe")
    try:
        run("ip", "netns", "add", name)
        yield name
    finally:
        remove_namespace(name)


@contextmanager
def _volume() -> Iterator[Volume]:
    with Volumes() as volumes:
        yield volumes.add("probe", SMALL_IMAGE_BYTES)


class _Asking:
    """A child process that answers a line with a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def __call__(self) -> str:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise CommandFailed("a probe's child ended") from None
        return self._process.stdout.readline().strip()


@contextmanager
def _child(code: str, environment: dict[str, str]) -> Iterator[_Asking]:
    with subprocess.Popen(
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            yield _Asking(process)
        finally:
            with suppress(BrokenPipeError):
                if process.stdin is not None:
                    process.stdin.close()
            process.kill()
            process.wait()
            clocks.forget(process.pid)
