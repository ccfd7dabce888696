"""raftlog's source, paused at the one moment that no checkpoint shows.

The query has its starting offsets, and has not requested the end of its first micro-batch yet. Records that are
produced then belong to the first micro-batch.

The classes are pickled by value for Spark's processes, which have raftlog, but not its tests.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_source.source import RaftlogSource


def held_source(held: str, patience_s: float) -> type[RaftlogSource]:
    """A source that creates the file `held` there, and continues when it is removed."""
    from spark_source.source import RaftlogSource, StreamReader

    class HeldReader(StreamReader):
        _was_held = False

        def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
            if not self._was_held:
                self._was_held = True
                Path(held).touch()
                deadline = time.monotonic() + patience_s
                while Path(held).exists():
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"{held} is still there")
                    time.sleep(0.01)
            return super().latestOffset(start, limit)

    class HeldSource(RaftlogSource):
        @classmethod
        def name(cls) -> str:
            return "raftlog_held"

        def streamReader(self, schema: Any) -> StreamReader:
            return HeldReader(self.options)

        def __reduce__(self) -> Any:
            return type(self), (self.options,)

    return HeldSource
