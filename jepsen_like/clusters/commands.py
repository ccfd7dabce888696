"""Programs of the operating system, run to completion, and work that a cancellation must not interrupt.

A change to the machine is made entirely or not at all: no cleanup code handles half a mount or half a heal. So each
such step runs to completion, which is bounded in time, and a cancellation that arrives meanwhile is raised afterwards.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

COMMAND_SECONDS = 30.0

PACKAGES = {
    "e2fsck": "e2fsprogs",
    "ip": "iproute2",
    "mkfs.ext4": "e2fsprogs",
    "mount": "mount",
    "nft": "nftables",
    "nsenter": "util-linux",
    "prlimit": "util-linux",
    "strace": "strace",
    "umount": "mount",
}
"""Program → the Debian package that contains it."""

T = TypeVar("T")
P = ParamSpec("P")


class CommandFailed(Exception):
    """A program of the operating system is missing, failed, or took too long; the text says which and why."""


def run(*command: str, given: str | None = None, seconds: float = COMMAND_SECONDS, accept: tuple[int, ...] = ()) -> str:
    """Run a command and return its standard output.

    `given`: its standard input. `accept`: exit codes beside 0 that count as success. Raises `CommandFailed`. Blocks.
    """
    name = command[0]
    try:
        done = subprocess.run(
            command,
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        raise CommandFailed(missing_program(name)) from None
    except OSError as error:
        raise CommandFailed(f"{name} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"{' '.join(command)}: not done within {seconds:.0f} s") from None
    if done.returncode != 0 and done.returncode not in accept:
        why = done.stderr.strip() or f"exit code {done.returncode}"
        raise CommandFailed(f"{' '.join(command)}: {why}")
    return done.stdout


def missing_program(name: str) -> str:
    """Return the error text for a missing program, with the package that contains it."""
    package = PACKAGES.get(name)
    return f"{name} is not installed" + (f": install Debian's package {package}" if package else "")


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of the work once it has completed; a cancellation that arrives meanwhile is raised then.

    The work must be bounded in time.
    """
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError from (None if task.cancelled() else task.exception())
    return task.result()


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking function in a thread, to completion."""
    return await to_the_end(asyncio.to_thread(function, *args, **kwargs))
