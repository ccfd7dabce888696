"""The open transactions of callers in partitions that this node leads, counted against their quota (S11). A pure core.

A transaction counts for the caller of its first batch here, until the quorum has decided it. Nothing tells this node
when a transaction that its leaders refused ends, and a new leader knows no caller of the transactions that it takes
over, so the number is approximate: each node counts for itself, as it does rates and connections, and from its start.

What has ended is found when another transaction begins: a few of all, and those of a caller that has reached its quota.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from raftlog.errors import RetriableError
from raftlog.security.principals import Caller
from raftlog.transactions import TransactionKey

from .quotas import Held, Quotas

LOOKED_AT = 2
"""The transactions that are looked at for each that begins: more than one, so that those that ended do not pile up."""
LOOKED_AT_OF_CALLER = 100
"""The transactions of a caller at its quota that are looked at for each that it begins."""


class OpenTransactions:
    """The transactions that callers have begun here. All calls are made on the broker's loop."""

    def __init__(self, quotas: Quotas, is_open: Callable[[TransactionKey], bool]) -> None:
        """`is_open` returns whether a transaction is granted and not decided, as far as this node knows."""
        self._quotas = quotas
        self._is_open = is_open
        self._callers: OrderedDict[TransactionKey, Caller] = OrderedDict()
        self._of: dict[str, OrderedDict[TransactionKey, None]] = {}
        """Principal → its transactions."""

    def __len__(self) -> int:
        """Return the number of transactions that count."""
        return len(self._callers)

    def begin(self, caller: Caller, key: TransactionKey) -> RetriableError | None:
        """Count a transaction with its first batch. Return the error (`throttled`) if it is one too many, or None."""
        if key in self._callers or not self._is_open(key):
            return None
        self._look_at_some()
        if not self._quotas.hold(caller, Held.OPEN_TRANSACTIONS):
            self._look_at_those_of(caller)
            if not self._quotas.hold(caller, Held.OPEN_TRANSACTIONS):
                return RetriableError(
                    "throttled", f"{caller} has as many open transactions as its quota permits: end some"
                )
        self._callers[key] = caller
        self._of.setdefault(caller.principal.name, OrderedDict())[key] = None
        return None

    def _look_at_some(self) -> None:
        for _ in range(min(LOOKED_AT, len(self._callers))):
            key = next(iter(self._callers))
            self._callers.move_to_end(key)
            self._end_if_decided(key)

    def _look_at_those_of(self, caller: Caller) -> None:
        own = self._of.get(caller.principal.name, OrderedDict())
        for _ in range(min(LOOKED_AT_OF_CALLER, len(own))):
            key = next(iter(own))
            own.move_to_end(key)
            self._end_if_decided(key)

    def _end_if_decided(self, key: TransactionKey) -> None:
        if self._is_open(key):
            return
        caller = self._callers.pop(key)
        own = self._of[caller.principal.name]
        del own[key]
        if not own:
            del self._of[caller.principal.name]
        self._quotas.release(caller, Held.OPEN_TRANSACTIONS)
