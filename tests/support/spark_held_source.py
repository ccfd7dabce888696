"""Our source, standing still at the one moment that no checkpoint shows: the query knows where it begins, and has not
asked yet how far its first micro-batch goes. What is produced then is data of a micro-batch that nothing was before.

The classes go to Spark's processes by value: these have raftlog, and not its tests.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_source.source import RaftlogSource


def held_source(held: str, patience_s: float) -> type[RaftlogSource]:
    """A source that makes the file `held` there, and goes on when it is gone."""
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
