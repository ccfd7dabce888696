"""The life of one fault: injected, held, proved, healed, reported. The only place where faults are reported.

An injection executes one step: `begin` injects the fault, `prove` inspects it while it lasts, `heal` ends it and
inspects again. Whatever happens in between, including a cancellation, `heal` runs to completion, and the fault is
reported afterwards with the evidence of both. A fault that could not be injected or proved is reported with its error
and without evidence: it is void. A failed heal is raised, because nothing after it would be meaningful.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from jepsen_like.clusters.cluster import NodeCluster
from jepsen_like.clusters.commands import CommandFailed, to_the_end
from jepsen_like.clusters.node import NodeEnded
from jepsen_like.clusters.power_loss import FaultDidNotBite, PowerLossUnavailable
from jepsen_like.run_records import Fault
from raftlog.errors import RaftlogError

from .steps import Step

Evidence = dict[str, Any]
Tell = Callable[[Fault], None]


class FaultNotMade(Exception):
    """The fault could not be injected, or there is no proof that it had an effect; the text says why."""


class HealFailed(Exception):
    """A fault could not be undone: the cluster is not what it was, and the run is over."""


class Stuck(HealFailed):
    """The cluster does not recover by itself from a fault that it has to survive (S10): a bug of the product."""


NOT_MADE = (FaultNotMade, FaultDidNotBite, CommandFailed, NodeEnded, PowerLossUnavailable, RaftlogError, OSError)
"""Errors that make a fault void; any other exception is a bug of the suite and is raised."""


class Injection(Protocol):
    """One fault on one cluster, for one use."""

    async def begin(self) -> None:
        """Inject the fault. Raises one of `NOT_MADE`."""
        ...

    async def prove(self) -> Evidence:
        """Return the evidence while the fault lasts; it may be empty if the heal provides it. Raises one of
        `NOT_MADE`.
        """
        ...

    async def heal(self) -> Evidence:
        """Undo what `begin` has done so far, in bounded time, and return the evidence of that.

        Raises one of `NOT_MADE` if the evidence is missing; whatever is not undone by then stays. Raises `Stuck` if
        there is nothing to undo and the cluster does not recover.
        """
        ...


async def carry_out(
    step: Step, injection: Injection, cluster: NodeCluster, hold: float, origin_ns: int, tell: Tell
) -> None:
    """Inject one fault for `hold` seconds.

    If another fault has a claim on the same resources, nothing is done or reported. Raises `HealFailed`.
    """
    if cluster.claimed & step.claims:
        return
    cluster.claimed |= step.claims
    fault = _Made(step, time.monotonic_ns() - origin_ns)
    try:
        await injection.begin()
        await asyncio.sleep(hold)
        fault.evidence = await injection.prove()
    except NOT_MADE as error:
        fault.error = str(error) or repr(error)
    finally:
        await to_the_end(_end(fault, injection, cluster, origin_ns, tell))


@dataclass(slots=True)
class _Made:
    step: Step
    began: int
    evidence: Evidence = field(default_factory=dict)
    error: str = ""

    def told(self, ended: int) -> Fault:
        """Return the record of the fault: proved, or void with the reason."""
        error = self.error or ("" if self.evidence else "there is no proof that it had an effect")
        evidence = {} if error else self.evidence
        kind, targets = self.step.kind, self.step.targets
        return Fault(kind=kind, targets=targets, began=self.began, ended=ended, evidence=evidence, error=error)


async def _end(fault: _Made, injection: Injection, cluster: NodeCluster, origin_ns: int, tell: Tell) -> None:
    """Heal the fault and report it, whatever happened."""
    try:
        fault.evidence |= await injection.heal()
    except (FaultNotMade, FaultDidNotBite) as error:
        fault.error = fault.error or str(error)
    except NOT_MADE as error:
        fault.error = f"the fault could not be healed: {error}"
        raise HealFailed(
            f"{fault.step.kind} of {', '.join(fault.step.targets)} could not be healed: {error}"
        ) from error
    finally:
        cluster.claimed -= fault.step.claims
        tell(fault.told(time.monotonic_ns() - origin_ns))
