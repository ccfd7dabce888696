"""Workloads by name: a log (with transactions, with groups), metadata registers and sets, committed offsets, positions,
topics that are deleted and recreated under a group, and consumers of the REST Proxy API.
"""

from __future__ import annotations

from raftlog.errors import InvalidRequest

from ..run_records import RunPlan
from .group_offsets import GROUP_OFFSETS
from .log import LOG
from .metadata_registers import METADATA_REGISTERS
from .metadata_set import METADATA_SET
from .positions import POSITIONS
from .rest import REST
from .topic_lives import TOPIC_LIVES
from .topics import TOPICS
from .workload import HEALED, Checker, Workload

__all__ = ["HEALED", "WORKLOADS", "Checker", "Workload", "workload_of"]

WORKLOADS = {
    workload.name: workload
    for workload in (LOG, METADATA_REGISTERS, METADATA_SET, GROUP_OFFSETS, TOPICS, POSITIONS, TOPIC_LIVES, REST)
}


def workload_of(plan: RunPlan) -> Workload:
    """Return the plan's workload. Raises `InvalidRequest` for a plan that cannot be run."""
    if plan.rate <= 0 or plan.seconds <= 0 or plan.processes < 1:
        raise InvalidRequest(
            "invalid_config", "a run needs a positive rate, a positive time and at least one client process"
        )
    if plan.workload not in WORKLOADS:
        raise InvalidRequest("invalid_config", f"unknown workload {plan.workload!r}; workloads: {', '.join(WORKLOADS)}")
    return WORKLOADS[plan.workload]
