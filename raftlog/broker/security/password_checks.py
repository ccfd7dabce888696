"""Checks of passwords on a node: a bounded pool, and a memory of those that succeeded a moment ago.

argon2 costs some 50 ms by design, on a pool of few threads. Programs send the same name and password with every
request, so a success is remembered for `REMEMBERED_SECONDS` under a key that is a MAC of both with a random key of the
process: the memory holds no password, and its keys cannot be computed outside. Only successes are remembered, and only
for the version of the user that was checked. Equal checks at the same time share one computation.

An unknown name costs the same as a known one with a wrong password: the same computation, against a hash that no
password matches (S12).
"""

from __future__ import annotations

import hmac
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from raftlog.broker.unforeseen import raise_soon
from raftlog.errors import InvalidRequest, InvariantViolation, RaftlogError, RetriableError
from raftlog.ports import Answer, Clock, Scheduler, Worker
from raftlog.security.secrets import Secret

THREADS = 2
"""Threads of the pool."""
MAX_CHECKS = THREADS + 64
"""Most checks that are computed or wait for a thread; 64 wait for less than two seconds."""
MAX_CHECKS_OF_HOST = 16
"""Most of them for one address, so that wrong passwords from one host leave room for others."""
MAX_SHARING = 1_000
"""Most requests that share one check."""
REMEMBERED_SECONDS = 60.0
MAX_REMEMBERED = 10_000
"""Most successes that are remembered; the oldest is forgotten first."""
KEY_BYTES = 32

_Key: TypeAlias = tuple[bytes, int]
"""MAC of name and password, and the user's version."""


class Hasher(Protocol):
    """The computations; `raftlog.broker.security.passwords` has the real ones."""

    def prepared(self, password: Secret) -> bytes:
        """Return the form of a password that is hashed. Raises `InvalidRequest` for one that no user can have."""
        ...

    def matches(self, phc: str, secret: bytes) -> bool:
        """Return whether a prepared password belongs to a hash. Blocks."""
        ...

    def unmatched_phc(self) -> str:
        """Return a hash that no password matches."""
        ...


class Stored(msgspec.Struct, frozen=True):
    """The stored hash of one user."""

    phc: str
    """Empty: the user has no password."""
    version: int


class _Check(msgspec.Struct):
    """One computation, and the requests that wait for it."""

    host: str
    answers: list[Answer[bool]]


class PasswordChecks:
    """The checks of one node. All calls are made on the loop's thread."""

    def __init__(
        self, hasher: Hasher, clock: Clock, scheduler: Scheduler, worker: Worker, random_bytes: Callable[[int], bytes]
    ) -> None:
        """`worker` is a pool of `THREADS` threads of its own. `random_bytes` is a secure source."""
        self._hasher = hasher
        self._clock = clock
        self._scheduler = scheduler
        self._worker = worker
        self._key = random_bytes(KEY_BYTES)
        self._unmatched = hasher.unmatched_phc()
        self._running: dict[_Key, _Check] = {}
        self._hosts: Counter[str] = Counter()
        self._remembered: OrderedDict[_Key, float] = OrderedDict()
        """Success → the time at which it is forgotten; in that order."""

    @property
    def running(self) -> int:
        """The number of checks that are computed or wait for a thread."""
        return len(self._running)

    def check(self, name: str, password: Secret, stored: Stored | None, host: str, answer: Answer[bool]) -> None:
        """Answer whether the password is that of the user; at once if it was found to be a moment ago.

        `stored` is the user's; None: there is no such user, and the answer is False. The error is a `RetriableError`
        (`overloaded`) if too many checks wait, or the computation lacks memory.
        """
        key = (self._mac(name, password), 0 if stored is None else stored.version)
        if self._is_remembered(key) and stored is not None:
            answer(True)
            return
        running = self._running.get(key)
        if running is not None:
            if len(running.answers) >= MAX_SHARING:
                answer(_overloaded("too many requests with the same name wait for the check of their password"))
            else:
                running.answers.append(answer)
            return
        if len(self._running) >= MAX_CHECKS:
            answer(_overloaded("too many passwords are being checked"))
        elif self._hosts[host] >= MAX_CHECKS_OF_HOST:
            answer(_overloaded("too many passwords from this address are being checked"))
        else:
            self._hosts[host] += 1
            self._running[key] = _Check(host, [answer])
            work = self._work(password, stored)
            self._worker.submit(work, lambda matched, error: self._was_checked(key, matched, error))

    # --- Inside ---

    def _mac(self, name: str, password: Secret) -> bytes:
        encoded = name.encode()
        message = len(encoded).to_bytes(4) + encoded + password.reveal().encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, message, "sha256")

    def _is_remembered(self, key: _Key) -> bool:
        until = self._remembered.get(key)
        return until is not None and self._clock.monotonic() < until

    def _work(self, password: Secret, stored: Stored | None) -> Callable[[], bool]:
        """Return the computation. It is the same whether user, password or neither exists."""
        phc = stored.phc if stored is not None and stored.phc else ""
        try:
            secret, is_possible = self._hasher.prepared(password), True
        except InvalidRequest:
            secret, is_possible = b"-", False  # No user can have such a password.

        def check() -> bool:
            matched = self._hasher.matches(phc or self._unmatched, secret)
            return matched and is_possible and phc != ""

        return check

    def _was_checked(self, key: _Key, matched: bool | None, error: BaseException | None) -> None:
        check = self._running.pop(key)
        self._hosts[check.host] -= 1
        if not self._hosts[check.host]:
            del self._hosts[check.host]
        if matched:
            self._remember(key)
        outcome: bool | RaftlogError = bool(matched)
        if isinstance(error, RaftlogError):
            outcome = error
        elif error is not None:
            raise_soon(self._scheduler, error)
            outcome = InvariantViolation("the check of a password failed; see `unforeseen` in the node's log")
        for answer in check.answers:
            answer(outcome)

    def _remember(self, key: _Key) -> None:
        now = self._clock.monotonic()
        self._remembered[key] = now + REMEMBERED_SECONDS
        self._remembered.move_to_end(key)
        while self._remembered:
            oldest, until = next(iter(self._remembered.items()))
            if now < until and len(self._remembered) <= MAX_REMEMBERED:
                break
            del self._remembered[oldest]


def _overloaded(why: str) -> RetriableError:
    return RetriableError("overloaded", f"{why}; retry later, or use a token, which needs no such check")
