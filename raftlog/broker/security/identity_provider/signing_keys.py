"""The keys of an identity provider on a running node: when they are read, and what serves meanwhile.

They are read at the start and then regularly. A token that names an unknown key causes a reading as well, at most once
a minute, because anybody can send such tokens. Keys that were read stay in use while the provider is away or answers
nonsense: its tokens must not fail with it. Reading blocks, so it happens on a worker, one reading at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from raftlog.errors import RaftlogError, RetriableError
from raftlog.ports import Clock, Logger, Scheduler, Timer, Worker
from raftlog.slices import in_turns

from .key_set import KeySet, SigningKey, parse_key_set
from .key_sources import KeySource

FILE_SECONDS = 2.0
"""Interval between two looks at a file."""
URL_SECONDS = 3600.0
"""Interval between two readings of a URL: a key that the provider withdrew is not accepted for longer."""
UNKNOWN_KEY_SECONDS = 60.0
"""Least interval between two readings of a URL because of unknown keys."""
RETRY_SECONDS = 10.0
"""Interval after a reading that failed."""
WAIT_SECONDS = 15.0
"""Longest time that a token waits for a reading."""
MAX_WAITING = 1_000
"""Most tokens that wait for a reading; more are answered at once."""


class SigningKeys:
    """The keys of one provider. All calls are made on the loop's thread."""

    def __init__(
        self, source: KeySource, interval: float, clock: Clock, scheduler: Scheduler, worker: Worker, logger: Logger
    ) -> None:
        """`interval` is the time in seconds between two regular readings."""
        self._source = source
        self._interval = interval
        self._clock = clock
        self._scheduler = scheduler
        self._worker = worker
        self._logger = logger
        self._keys = KeySet(())
        self._reading = False
        self._not_before = 0.0
        """Earliest time of the next reading because of an unknown key."""
        self._waiting: list[Callable[[], None]] = []
        self._timer: Timer | None = None
        self._deadline: Timer | None = None
        self._complaint = ""
        """The problem of the last reading; empty: it succeeded."""
        self._unusable: RaftlogError | None = None
        """Why the content that was read last is no key set: it counts until there is another. The worker's."""
        self._closed = False

    @property
    def is_known(self) -> bool:
        """Whether any keys were read."""
        return len(self._keys) > 0

    def start(self) -> None:
        """Read the keys, and go on reading them regularly."""
        self._read()

    def close(self) -> None:
        """Stop reading. Tokens that wait are answered at once."""
        self._closed = True
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def find(self, key_id: str | None, algorithm: str) -> SigningKey | None:
        """Return the key for a token's header; None: it is unknown."""
        return self._keys.find(key_id, algorithm)

    def after_reading(self, then: Callable[[], None]) -> None:
        """Call after a reading because of an unknown key: at once if none is due, and after `WAIT_SECONDS` at most."""
        due = self._reading or self._clock.monotonic() >= self._not_before
        if self._closed or not due or len(self._waiting) >= MAX_WAITING:
            then()
            return
        self._waiting.append(then)
        if self._deadline is None:
            self._deadline = self._scheduler.call_later(WAIT_SECONDS, self._answer_waiting)
        if not self._reading:
            self._read()

    def problems(self) -> list[str]:
        """Return the problem for the node's health."""
        if not self._complaint:
            return []
        serving = "the keys that were read before are still in use" if self.is_known else "no access token is accepted"
        return [f"{self._complaint}; {serving}"]

    # --- Inside ---

    def _read(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._reading = True
        self._worker.submit(self._read_on_worker, self._was_read)

    def _read_on_worker(self) -> KeySet | None:
        content = self._source()
        if content is not None:
            self._unusable = None
            try:
                return parse_key_set(content)
            except RaftlogError as error:
                self._unusable = error
        if self._unusable is not None:
            raise type(self._unusable)(self._unusable.code, self._unusable.detail)
        return None

    def _was_read(self, keys: KeySet | None, error: BaseException | None) -> None:
        self._reading = False
        if self._closed:
            return
        complaint = ""
        if isinstance(error, RaftlogError):
            complaint = f"the signing keys of the identity provider could not be read: {error.detail}"
        elif error is not None:
            complaint = f"the signing keys of the identity provider could not be read: {type(error).__name__}"
        if complaint and complaint != self._complaint:
            self._logger.warning("signing_keys_not_read", reason=complaint)
        elif self._complaint and not complaint:
            self._logger.info("signing_keys_read")
        self._complaint = complaint
        if keys is not None:
            self._keys = keys
        pause = self._interval if not complaint else min(RETRY_SECONDS, self._interval)
        self._not_before = self._clock.monotonic() + (min(UNKNOWN_KEY_SECONDS, pause))
        self._timer = self._scheduler.call_later(pause, self._read)
        self._answer_waiting()
        if error is not None and not isinstance(error, RaftlogError):
            raise error

    def _answer_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        waiting, self._waiting = self._waiting, []
        in_turns(self._scheduler, waiting, lambda then: then())


def not_read() -> RetriableError:
    """Return the error of an access token that cannot be checked, because the keys were never read."""
    return RetriableError(
        "identity_provider_unavailable",
        "the signing keys of the identity provider could not be read yet, so no access token can be checked; retry, "
        "and see the node's health for the reason",
    )
