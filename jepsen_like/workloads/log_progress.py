"""The progress on each key of a log, learned from all answers: how far it was written, and read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jepsen_like.histories.history import Operation

from ..checkers.kafka_log import WORK


@dataclass(frozen=True, slots=True)
class Progress:
    """Key → the highest offset that an answer named."""

    written: Mapping[str, int] = field(default_factory=dict)
    """Offsets acknowledged, or seen by any poll."""
    read: Mapping[str, int] = field(default_factory=dict)

    def told(self, operation: Operation) -> Progress:
        if operation.f not in WORK or operation.kind not in {"ok", "info"}:
            return self
        written, read = dict(self.written), dict(self.read)
        for what, key, offset in offsets_of(operation):
            if what == "poll" and operation.kind == "ok":
                read[key] = max(read.get(key, -1), offset)
            if what == "poll" or operation.kind == "ok":
                written[key] = max(written.get(key, -1), offset)
        return self if (written, read) == (self.written, self.read) else replace(self, written=written, read=read)

    @property
    def unseen(self) -> list[str]:
        """Keys with records that no process has read."""
        return [key for key, offset in self.written.items() if self.read.get(key, -1) < offset]


def offsets_of(operation: Operation) -> Iterator[tuple[str, str, int]]:
    """Yield `send` or `poll`, key and offset of every record in a completion."""
    for micro in operation.value or ():
        if micro[0] == "send" and _is_pair(micro[2]) and micro[2][0] is not None:
            yield "send", micro[1], micro[2][0]
        elif micro[0] == "poll" and len(micro) == 2:
            for key, pairs in micro[1].items():
                for offset, _ in pairs:
                    yield "poll", key, offset


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2
