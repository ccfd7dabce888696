"""Trying what a machine can do, on things that are made for it and removed again.

Each probe returns when it worked, as a fault would need it, and raises `CommandFailed`, `OSError` or
`PowerLossUnavailable` otherwise. They block, for tens of milliseconds each.
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
        raise CommandFailed("this process is not root's")


def loopback() -> None:
    """Linux has all of 127.0.0.0/8 without a word; other systems one address."""
    subnet = Subnet()
    try:
        with socket.socket() as listening:
            listening.bind((subnet.loopback(1), 0))
    finally:
        subnet.close()


def namespaces() -> None:
    """A bridge, and a namespace with one end of a pair of interfaces, through which a packet can go."""
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
    """A rule that drops and counts."""
    with _namespace(Tag.new()) as name:
        nft(name, "-f", "-", given=rules({"n1>n2": "10.77.0.1"}))
        counted = packets(nft(name, "-j", "list", "ruleset"))
        if counted != {"n1>n2": 0}:
            raise CommandFailed(f"nft lists other rules than it was given: {counted}")


def power_loss() -> None:
    """As a cut does it, with its proof."""
    with _volume() as volume:
        volume.cut(Survivors.NOTHING, random.Random(0))
        volume.restore()


def read_only() -> None:
    """A mounted ext4 that finds an error turns read-only, and can be mounted again."""
    with _volume() as volume:
        disk_faults.turn_read_only(volume)
        refused = disk_faults.refusal(volume)
        if refused not in {errno.EROFS, errno.EIO}:
            raise CommandFailed(f"a file system that found an error can still be written: {refused}")
        disk_faults.repair(volume)
        if disk_faults.refusal(volume) is not None:
            raise CommandFailed("a repaired file system cannot be written")


def faketime() -> None:
    """A program that is already running sees another wall clock, and the same monotonic one."""
    preload = clocks.library()
    if preload is None:
        raise CommandFailed(f"there is no {clocks.LIBRARY} here")
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
    """A program sees another monotonic clock."""
    code = "import time; print(time.monotonic())"
    command = (sys.executable, "-P", "-m", "jepsen_like.clusters.time_namespace", str(FAKED_SECONDS))
    ahead = float(run(*command, sys.executable, "-c", code)) - time.monotonic()
    if abs(ahead - FAKED_SECONDS) > PROBE_SECONDS:
        raise CommandFailed(f"a namespace of time set the monotonic clock {ahead:.0f} s ahead, not {FAKED_SECONDS}")


def strace() -> None:
    """A program that is already running is told that its fsync failed."""
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
        raise CommandFailed(f"an injected failure of fsync was {answer}, afterwards {after}, told {told} times")


def descriptors() -> None:
    """A program that is already running is given no more, and then again; another one starts with few."""
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
        raise CommandFailed(f"opening a file gave {answers}, before, at, and after a limit of its descriptors")
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
    """A child that answers a line with a line."""

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
