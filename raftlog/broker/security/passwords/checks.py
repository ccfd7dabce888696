"""Checks of passwords on a node: a bounded pool, and a memory of those that succeeded a moment ago.

argon2 costs some 50 ms by design, on a pool of few threads. Programs send the same name and password with every
request, so a success is remembered for `REMEMBERED_SECONDS` under a key that is a MAC of both with a random key of the
process: the memory holds no password, and its keys cannot be computed outside. Only successes are remembered, and only
for the version of the user that was checked. Equal checks at the same time share one computation.

The checks that wait take turns by host, so that wrong passwords from some hosts do not keep the right ones of others
out (`check_queue`). Hosts and credentials with a success within `KNOWN_SECONDS` come first.

An unknown name costs the same as a known one with a wrong password: the same computation, against a hash that no
password matches (S12).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from raftlog.broker.unforeseen import raise_soon
from raftlog.errors import InvalidRequest, InvariantViolation, RaftlogError, RetriableError
from raftlog.ports import Answer, Clock, Scheduler, Worker
from raftlog.security.principals import network_of
from raftlog.security.secrets import Secret
from raftlog.slices import in_turns

from .check_queue import MAX_WAITING, CheckQueue, Dropped, Waiting
from .successes import Successes

THREADS = 2
"""Threads of the pool."""
MAX_CHECKS = THREADS + MAX_WAITING
"""Most checks that are computed or wait for a thread; 64 wait for less than two seconds."""
MAX_SHARING = 1_000
"""Most requests that share one check."""
REMEMBERED_SECONDS = 60.0
KNOWN_SECONDS = 3600.0
"""The time for which a success lets the checks of its host, and of its credential, go first."""
MAX_REMEMBERED = 10_000
"""Most successes, and most hosts with one, that are remembered; the oldest is forgotten first."""
KEY_BYTES = 32

_Key: TypeAlias = tuple[bytes, int]
"""MAC of name and password, and the user's version."""


class Hasher(Protocol):
    """The computations; `raftlog.broker.security.passwords.passwords` has the real ones."""

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
    work: Callable[[], bool]
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
        self._queue: CheckQueue[_Key] = CheckQueue()
        """Those of `_running` that wait for a thread."""
        self._computing = 0
        """The number of the others, which the worker has."""
        self._credentials: Successes[_Key] = Successes(MAX_REMEMBERED, KNOWN_SECONDS)
        self._hosts: Successes[str] = Successes(MAX_REMEMBERED, KNOWN_SECONDS)

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
        host = network_of(host)
        now = self._clock.monotonic()
        if stored is not None and self._credentials.is_within(key, REMEMBERED_SECONDS, now):
            self._hosts.note(host, now)
            answer(True)
            return
        running = self._running.get(key)
        if running is None:
            self._begin(key, _Check(host, self._work(password, stored), [answer]))
        elif len(running.answers) >= MAX_SHARING:
            answer(_overloaded("too many requests with the same name wait for the check of their password"))
        else:
            running.answers.append(answer)

    # --- Inside ---

    def _mac(self, name: str, password: Secret) -> bytes:
        encoded = name.encode()
        message = len(encoded).to_bytes(4) + encoded + password.reveal().encode("utf-8", "surrogatepass")
        return hmac.digest(self._key, message, "sha256")

    def _begin(self, key: _Key, check: _Check) -> None:
        """Let a check wait for its turn, and drop another, or this one, if there is no room."""
        now = self._clock.monotonic()
        self._running[key] = check
        known_credential = self._credentials.is_within(key, KNOWN_SECONDS, now)
        known_host = self._hosts.is_within(check.host, KNOWN_SECONDS, now)
        dropped = self._queue.put(Waiting(key, check.host, known_credential, known_host))
        if dropped is not None:
            self._drop(dropped)
        self._use_threads()

    def _use_threads(self) -> None:
        """Hand the checks whose turn it is to the threads that are free."""
        while self._computing < THREADS and (key := self._queue.take()) is not None:
            self._computing += 1
            self._compute(key)

    def _compute(self, key: _Key) -> None:
        self._worker.submit(self._running[key].work, lambda matched, error: self._was_checked(key, matched, error))

    def _drop(self, dropped: Dropped[_Key]) -> None:
        check = self._running.pop(dropped.key)
        where = ", most of them from this address" if dropped.is_of_busiest_host else ""
        error = _overloaded(f"too many passwords are being checked{where}")
        # On the loop's next turn: what another's answer does is no concern of the request that arrives.
        self._scheduler.call_soon(lambda: self._answer(check, error))

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
        self._computing -= 1
        if matched:
            now = self._clock.monotonic()
            self._credentials.note(key, now)
            self._hosts.note(check.host, now)
        outcome: bool | RaftlogError = bool(matched)
        if isinstance(error, RaftlogError):
            outcome = error
        elif error is not None:
            raise_soon(self._scheduler, error)
            outcome = InvariantViolation("the check of a password failed; see `unforeseen` in the node's log")
        self._use_threads()
        self._answer(check, outcome)

    def _answer(self, check: _Check, outcome: bool | RaftlogError) -> None:
        """Answer the requests that share a check, in turns: a thousand refusals take the loop a while."""
        in_turns(self._scheduler, check.answers, lambda answer: answer(outcome))


def _overloaded(why: str) -> RetriableError:
    return RetriableError("overloaded", f"{why}; retry later, or use a token, which needs no such check")
