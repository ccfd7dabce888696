"""Client processes of the operating system: one that works, and others that lie, hang, die and do not start."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from jepsen_like.clients.messages import Ask, Open, Told, rotated
from jepsen_like.runs import client_processes
from jepsen_like.runs.client_processes import ClientGone, ClientProcess

OPEN = Open("registers", ["127.0.0.1:1"], 0, {"tag": "x", "topics": {"t": 1}})
READY = 'print(\'{"kind": "ok", "value": "ready"}\', flush=True); '
WORK = Ask(0, "read", ["t", None], 5.0)


def program(text: str) -> tuple[str, ...]:
    """Reads one line, and continues."""
    return (sys.executable, "-S", "-c", f"import sys, time; sys.stdin.readline(); {text}")


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_client_process_works_until_its_input_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "clients" / "worker-0.log"
    started: list[asyncio.subprocess.Process] = []
    create = asyncio.create_subprocess_exec

    async def created(*program: str, **options: Any) -> asyncio.subprocess.Process:
        started.append(await create(*program, **options))
        return started[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", created)
    child = await ClientProcess.start(OPEN, log)
    try:
        told = await child.ask(WORK)
        assert told.kind == "fail" and told.error == "no node accepts connections"
        # Larger than any pipe's buffer, there and back.
        large = await child.ask(Ask(0, "sing" * 300_000, ["t", None], 5.0))
        assert large.kind == "info" and len(large.error["exception"]) > 1_000_000
        # Its parent is gone, and with it the other end of its input.
        (process,) = started
        assert process.stdin is not None
        process.stdin.close()
        async with asyncio.timeout(60):
            assert await process.wait() == 0
    finally:
        await child.stop()
    assert is_gone(child.pid)
    assert b"ValueError" in log.read_bytes(), "what it printed is kept"


@pytest.mark.parametrize(
    "text",
    [
        "sys.exit(0)",
        'print("hello")',
        'print(\'{"kind": "ok", "value": "almost"}\')',
        "import os; os.kill(os.getpid(), 9)",
    ],
)
async def test_one_that_fails_to_start_is_gone(tmp_path: Path, text: str) -> None:
    with pytest.raises(ClientGone):
        await ClientProcess.start(OPEN, tmp_path / "log", program(text))


async def test_one_that_never_becomes_ready_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_processes, "START_SECONDS", 0.3)
    with pytest.raises(ClientGone, match="not ready within"):
        await ClientProcess.start(OPEN, tmp_path / "log", program("time.sleep(600)"))


@pytest.mark.parametrize(
    "text",
    [
        "sys.stdin.readline(); sys.exit(3)",
        'sys.stdin.readline(); print(\'{"kind": "maybe"}\', flush=True); time.sleep(600)',
        "sys.stdin.readline(); print('no JSON', flush=True); time.sleep(600)",
        "sys.stdin.readline(); sys.stdout.write('half a l'); sys.stdout.flush(); sys.exit(0)",
    ],
)
async def test_one_that_answers_nonsense_or_dies_is_reported_as_gone(tmp_path: Path, text: str) -> None:
    child = await ClientProcess.start(OPEN, tmp_path / "log", program(READY + text))
    try:
        with pytest.raises(ClientGone):
            await child.ask(WORK)
    finally:
        await child.kill()
    assert is_gone(child.pid)


async def test_one_that_is_paused_does_nothing_and_continues(tmp_path: Path) -> None:
    echo = '[print(sys.stdin.readline() and \'{"kind": "ok"}\', flush=True) for _ in range(9)]'
    child = await ClientProcess.start(OPEN, tmp_path / "log", program(READY + echo))
    try:
        assert (await child.ask(WORK)).kind == "ok"
        stalling = asyncio.create_task(child.stall(0.2))
        await asyncio.sleep(0)
        asking = asyncio.create_task(child.ask(WORK))
        await asyncio.wait({stalling, asking}, return_when=asyncio.FIRST_COMPLETED)
        assert stalling.done() and not asking.done()
        assert (await asking).kind == "ok"
    finally:
        await child.kill()
    with pytest.raises(ClientGone):
        await child.stall(0)


async def test_one_that_hangs_can_be_given_up_and_killed_repeatedly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_processes, "STOP_SECONDS", 0.2)
    hanging = program(READY + "time.sleep(600)")
    child = await ClientProcess.start(OPEN, tmp_path / "log", hanging)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await child.ask(WORK)
    await child.kill()
    await child.kill()
    assert is_gone(child.pid)
    other = await ClientProcess.start(OPEN, tmp_path / "log", hanging)
    await other.stop()
    assert is_gone(other.pid), "it does not stop by itself"


def test_workers_are_distributed_over_the_nodes() -> None:
    assert [rotated(["a", "b", "c"], worker)[0] for worker in range(4)] == ["a", "b", "c", "a"]
    assert rotated(["a", "b", "c"], 1) == ["b", "c", "a"]
    assert Told("ok") == Told("ok", None, None, [])
