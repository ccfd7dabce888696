"""A fault from its beginning to its heal: made, held, proved, healed, told. The only place where faults are told.

An injection is one step made flesh: `begin` makes it, `prove` looks at it while it lasts, `heal` ends it and looks
again. Whatever happens in between, also a cancellation, `heal` runs to its end, and the fault is told afterwards with
what proves it: the evidence of both. A fault that could not be made, or not be proved, is told with its error and
without evidence: void. A heal that fails is raised: nothing that comes after it would mean anything.
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
    """It could not be made, or there is no proof that it bit; the text says why."""


class HealFailed(Exception):
    """A fault could not be taken back: the cluster is not what it was, and the run is over."""


class Stuck(HealFailed):
    """What the cluster has to get over by itself it does not (S10): nobody's fault but the product's."""


NOT_MADE = (FaultNotMade, FaultDidNotBite, CommandFailed, NodeEnded, PowerLossUnavailable, RaftlogError, OSError)
"""What keeps a fault from being made; anything else is a mistake of ours and is raised."""


class Injection(Protocol):
    """One fault on one cluster, once."""

    async def begin(self) -> None:
        """Make it. Raises one of `NOT_MADE`."""
        ...

    async def prove(self) -> Evidence:
        """What proves it while it lasts; may be empty where the heal proves it. Raises one of `NOT_MADE`."""
        ...

    async def heal(self) -> Evidence:
        """Take back whatever `begin` did, however far it came; bounded in time. What this proves. Raises one of
        `NOT_MADE` for what does not prove it; anything that is not healed by then is healed no more. Raises `Stuck`
        where there is nothing to take back, and the cluster does not get over it."""
        ...


async def carry_out(
    step: Step, injection: Injection, cluster: NodeCluster, hold: float, origin_ns: int, tell: Tell
) -> None:
    """One fault, for `hold` seconds. What somebody else breaks already is left alone, untold. Raises `HealFailed`."""
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
        """As the run's records have it: proved, or void and why."""
        error = self.error or ("" if self.evidence else "nothing proves that it bit")
        evidence = {} if error else self.evidence
        kind, targets = self.step.kind, self.step.targets
        return Fault(kind=kind, targets=targets, began=self.began, ended=ended, evidence=evidence, error=error)


async def _end(fault: _Made, injection: Injection, cluster: NodeCluster, origin_ns: int, tell: Tell) -> None:
    """Heal, and tell whatever became of it."""
    try:
        fault.evidence |= await injection.heal()
    except (FaultNotMade, FaultDidNotBite) as error:
        fault.error = fault.error or str(error)
    except NOT_MADE as error:
        fault.error = f"it could not be healed: {error}"
        raise HealFailed(
            f"{fault.step.kind} of {', '.join(fault.step.targets)} could not be healed: {error}"
        ) from error
    finally:
        cluster.claimed -= fault.step.claims
        tell(fault.told(time.monotonic_ns() - origin_ns))
