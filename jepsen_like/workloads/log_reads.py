"""The final reads of a log: every worker reads every key from the beginning, up to the highest known offset.

A worker that has read nothing for ten seconds and has not reached the end is killed and starts over, as in Jepsen's
workload: a consumer that hangs must not hide that a record exists. Each worker reads for itself, and a difference
between what two of them saw is an anomaly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jepsen_like.histories.history import Operation

from .generators import Context, Drawn, Generator, Wanted
from .log_progress import Progress, offsets_of

AGAIN_AFTER = 10_000_000_000
POLL_EVERY = 50_000_000
"""Both in nanoseconds."""


@dataclass(frozen=True, slots=True)
class ReadAll(Generator):
    """The reads of one worker, for `EachWorker`."""

    keys: tuple[str, ...]
    progress: Progress = field(default_factory=Progress)
    process: int = -1
    """The process that began. If the worker has another one, reading starts over."""
    stage: str = "let go"
    """`let go` of earlier assignments, `assign` everything from the beginning, `poll`, or `crash`."""
    went_on: int = 0
    """Time of the beginning, or of the last progress."""
    next_poll: int = 0
    mine: Mapping[str, int] = field(default_factory=dict)
    """Key → the highest offset read since the beginning."""

    def draw(self, context: Context) -> Drawn:
        (process,) = context.free
        here = self if process == self.process else self._begun(process)
        if here.is_there:
            return None, here
        now = context.time
        if here.stage == "let go":
            return Wanted(process, "assign", [], now), replace(here, stage="assign", went_on=now)
        if here.stage == "assign":
            hint = {"start": "earliest"}
            return Wanted(process, "assign", list(self.keys), now, hint), replace(here, stage="poll")
        if now - here.went_on > AGAIN_AFTER:
            return Wanted(process, "crash", None, now), replace(here, process=-1)
        begins = max(now, here.next_poll)
        return Wanted(process, "poll", [["poll"]], begins), replace(here, next_poll=begins + POLL_EVERY)

    def told(self, operation: Operation) -> Generator:
        progress = self.progress.told(operation)
        here = self if progress is self.progress else replace(self, progress=progress)
        if operation.process != self.process or operation.kind == "invoke":
            return here
        if operation.f == "assign" and operation.kind != "ok":
            return replace(here, stage="let go")
        if operation.f == "poll" and operation.kind == "ok" and self.stage == "poll":
            mine = dict(self.mine)
            for _, key, offset in offsets_of(operation):
                mine[key] = max(mine.get(key, -1), offset)
            return replace(here, mine=mine, went_on=operation.time if mine != self.mine else self.went_on)
        return here

    @property
    def is_there(self) -> bool:
        return self.stage == "poll" and all(
            self.mine.get(key, -1) >= self.progress.written.get(key, -1) for key in self.keys
        )

    def _begun(self, process: int) -> ReadAll:
        return replace(self, process=process, stage="let go", mine=_NOTHING)


_NOTHING: Mapping[str, Any] = {}
