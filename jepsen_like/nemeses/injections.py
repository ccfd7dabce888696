"""The table from steps to the injections that execute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jepsen_like.clusters.cluster import NodeCluster

from . import (
    crafted_steps,
    descriptors,
    disks,
    files,
    left_behind,
    membership,
    networks,
    overtaken,
    power,
    processes,
    replacement,
    sluggish,
    steps,
    wall_clocks,
)
from .injection import Injection
from .steps import Step

INJECTIONS: Mapping[type[Any], Callable[[Any, NodeCluster], Injection]] = {
    steps.Kill: processes.Killing,
    crafted_steps.SlowKill: sluggish.KillingWhileSlow,
    steps.Pause: processes.Pausing,
    steps.MonotonicOffset: processes.OffsettingMonotonic,
    steps.Cut: networks.Cutting,
    steps.Slow: networks.Slowing,
    steps.Stall: networks.Stalling,
    steps.Reset: networks.Resetting,
    steps.Linger: networks.Lingering,
    steps.Bump: wall_clocks.Bumping,
    steps.WrongStart: wall_clocks.StartingWrong,
    steps.Strobe: wall_clocks.Strobing,
    steps.Power: power.Blackout,
    steps.SlowPower: power.Blackout,
    steps.PowerAndRot: power.BlackoutAndRot,
    steps.AmnesiaInTheMiddle: power.Forgetting,
    steps.Flip: files.Damaging,
    steps.Truncate: files.Damaging,
    steps.RollBack: files.RollingBack,
    steps.FullDisk: disks.Filling,
    steps.ReadOnly: disks.TurningReadOnly,
    steps.FewDescriptors: descriptors.RunningOut,
    steps.IdleConnections: descriptors.Crowding,
    steps.FailSync: disks.TouchingSyncs,
    steps.SlowSync: disks.TouchingSyncs,
    steps.ReplaceDisk: replacement.Replacing,
    steps.RemoveVoter: membership.RemovingVoter,
    steps.Reassign: membership.Reassigning,
    steps.Drain: membership.Draining,
    crafted_steps.MoveAndKill: overtaken.MovingAndKilling,
    crafted_steps.LeaveBehind: left_behind.LeavingBehind,
}


def injection_of(step: Step, cluster: NodeCluster) -> Injection:
    """Return an injection for one use."""
    return INJECTIONS[type(step)](step, cluster)
