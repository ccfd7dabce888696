"""What the controller's command does to the cluster's time: it goes on, by a bounded step, and never back.

Whatever a node believes about clocks, the image takes no step that was made for another time or by a controller that
was deposed. Nothing that is stamped in the image (commits of offsets, ends of transactions, a group's last member) has
another clock than this one, so no node's wall clock can make any of it old (S8).
"""

from __future__ import annotations

from raftlog.model import ClusterTime

from .command_results import CommandResult, Done, Refused
from .commands import MAX_STEP_MS, STAMP_LAG_MS, TIME_FEATURE_LEVEL, AdvanceTime
from .image_state import ImageState


def advance_time(state: ImageState, command: AdvanceTime, term: int) -> CommandResult:
    """Decided against the time as this entry of the log finds it."""
    now_ms = state.time.now_ms
    if command.term != term:
        return Refused("not_controller", f"a step of term {command.term} in an entry of term {term}")
    if state.feature_level < TIME_FEATURE_LEVEL:
        return Refused("unsupported_version", f"the feature level is {state.feature_level}, not {TIME_FEATURE_LEVEL}")
    if command.from_ms != now_ms:
        return Refused("invalid_request", f"the cluster's time is {now_ms}, not {command.from_ms}")
    if command.to_ms < max(now_ms, 1):
        return Refused("invalid_request", f"the cluster's time is {now_ms} and does not go back to {command.to_ms}")
    if now_ms and command.to_ms > now_ms + MAX_STEP_MS:
        return Refused("invalid_request", f"a step of {command.to_ms - now_ms} ms: at most {MAX_STEP_MS} are taken")
    leaps = command.to_ms > now_ms + STAMP_LAG_MS
    began_ms = command.to_ms if leaps else state.time.began_ms
    state.put_time(ClusterTime(command.to_ms, began_ms, command.agreed_ms))
    return Done()
