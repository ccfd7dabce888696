"""New passwords, hashed on a worker. S11."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from raftlog.broker.security.passwords.hashing import MAX_HASHING, PasswordHashing
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.security.secrets import Secret
from raftlog.system.runtime import ThreadWorker

pytestmark = pytest.mark.integration

PASSWORD = "correct horse battery staple"


@pytest.fixture
async def worker() -> AsyncIterator[ThreadWorker]:
    made = ThreadWorker(asyncio.get_running_loop(), 2, "passwords")
    yield made
    await asyncio.to_thread(made.close)


async def test_new_passwords_are_hashed_in_a_bounded_number_s11(worker: ThreadWorker) -> None:
    hashing = PasswordHashing(worker)
    hashes = [asyncio.ensure_future(hashing.hash(Secret(PASSWORD))) for _ in range(MAX_HASHING)]
    await asyncio.sleep(0)
    with pytest.raises(RetriableError, match="too many new passwords"):
        await hashing.hash(Secret(PASSWORD))
    assert len({one.argon2 for one in await asyncio.gather(*hashes)}) == MAX_HASHING
    with pytest.raises(InvalidRequest, match="at least 8"):
        await hashing.hash(Secret("short"))
