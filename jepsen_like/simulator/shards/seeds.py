"""Five kinds of worlds behind one face: the quorum alone or with a consumer group; clusters alone, with transactions,
or with the client library.

`run_one` runs a seed of either kind; the command line, the shards and the tests know no more of the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from jepsen_like.simulator.quorum.run import run_quorum_seed


class Verdict(Protocol):
    """How a run ended, whatever ran."""

    @property
    def seed(self) -> int: ...
    @property
    def seconds(self) -> float:
        """Virtual."""
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
    # Whole brokers are imported by those who run them.
    from jepsen_like.simulator.cluster.run import run_seed

    return run_seed(seed, seconds, faulty=faulty)


def _quorum(seed: int, seconds: float, *, faulty: bool = True) -> Verdict:
    return run_quorum_seed(seed, seconds, faulty=faulty)


def _groups(seed: int, seconds: float, *, faulty: bool = True) -> Verdict:
    from jepsen_like.simulator.groups.run import run_group_seed

    return run_group_seed(seed, seconds, faulty=faulty)


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
    "transactions": _transactions,
    "clients": _clients,
}
"""Kind → how a seed of it is run."""

Report = Callable[[Verdict], None]
