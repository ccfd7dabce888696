"""The hashing of new passwords on a worker, where argon2id and SCRAM cost some 60 ms by design.

The library is imported there too, when the first password is set.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from raftlog.errors import RetriableError
from raftlog.ports import Worker
from raftlog.security.secrets import Secret

if TYPE_CHECKING:
    from .passwords import PasswordMaterial

MAX_HASHING = 16
"""Most new passwords that are hashed or wait for it."""


class PasswordHashing:
    """New passwords of one node. All calls are made on the broker's loop."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._hashing = 0

    async def hash(self, password: Secret) -> PasswordMaterial:
        """Return what the quorum stores of a new password.

        Raises `InvalidRequest` for one that no user may have, and `RetriableError` if too many are being hashed.
        """
        if self._hashing >= MAX_HASHING:
            raise RetriableError("overloaded", "too many new passwords are being hashed; retry later")
        hashed: asyncio.Future[PasswordMaterial] = asyncio.get_running_loop().create_future()

        def done(made: PasswordMaterial | None, error: BaseException | None) -> None:
            self._hashing -= 1
            if hashed.done():
                return
            if error is not None:
                hashed.set_exception(error)
            elif made is not None:
                hashed.set_result(made)

        self._hashing += 1
        self._worker.submit(lambda: _material_of(password), done)
        return await hashed


def _material_of(password: Secret) -> PasswordMaterial:
    from .passwords import new_material

    return new_material(password)
