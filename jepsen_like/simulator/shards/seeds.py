"""Seven kinds of worlds behind one interface: the quorum alone, with a consumer group, with HTTP consumers, or with
changes of security; clusters alone, with transactions, or with the client library.

`RUNNERS` has a function for each kind that runs a seed; the command line, the shards and the tests need to know nothing
more of the differences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from jepsen_like.simulator.quorum.run import run_quorum_seed


class Verdict(Protocol):
    """The outcome of a run of any kind."""

    @property
    def seed(self) -> int: ...
    @property
    def seconds(self) -> float:
        """Virtual seconds."""
        ...

    @property
    def trace(self) -> str: ...
    @property
    def violation(self) -> str: ...
    @property
    def passed(self) -> bool: ...
    @property
    def lines(self) -> list[str]: ...


class Runner(Protocol):
    def __call__(self, seed: int, seconds: float, *, faulty: bool = True) -> Verdict: ...


def _cluster(seed: int, seconds: float, *, faulty: bool = True) -> Verdict:
    # Whole brokers are imported only when they run.
    from jepsen_like.simulator.cluster.run import run_seed

    return run_seed(seed, seconds, faulty=faulty)


def _quorum(seed: int, seconds: float, *, faulty: bool = True) -> Verdict:
    return run_quorum_seed(seed, seconds, faulty=faulty)


def _groups(seed: int, seconds: float, *, faulty: bool = True) -> Verdict:
    from jepsen_like.simulator.groups.run import run_group_seed

    return run_group_seed(seed, seconds, faulty=faulty)


def _consumers(seed: int, seconds: float, *, faulty: bool = True) -> Verdict:
    from jepsen_like.simulator.consumers.run import run_consumers_seed

    return run_consumers_seed(seed, seconds, faulty=faulty)


def _security(seed: int, seconds: float, *, faulty: bool = True) -> Verdict:
    from jepsen_like.simulator.security.run import run_security_seed

    return run_security_seed(seed, seconds, faulty=faulty)


def _transactions(seed: int, seconds: float, *, faulty: bool = True) -> Verdict:
    from jepsen_like.simulator.transactions.run import run_transaction_seed

    return run_transaction_seed(seed, seconds, faulty=faulty)


def _clients(seed: int, seconds: float, *, faulty: bool = True) -> Verdict:
    from jepsen_like.simulator.library.run import run_client_seed

    return run_client_seed(seed, seconds, faulty=faulty)


RUNNERS: Mapping[str, Runner] = {
    "cluster": _cluster,
    "quorum": _quorum,
    "groups": _groups,
    "consumers": _consumers,
    "security": _security,
    "transactions": _transactions,
    "clients": _clients,
}
"""Kind → the function that runs a seed."""

Report = Callable[[Verdict], None]
