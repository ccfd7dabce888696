"""Whatever is not the peer's or the caller's fault stops a node for good: it no longer knows what it promised.

What is *not* here: whose fault an error is (its class says that), and what stopping means (`quorum_thread.py`).
"""

from __future__ import annotations

from raftlog.errors import RemoteProtocolError


class OrStop:
    """Around every call of one node. The first error of its own is raised again by every later call."""

    __slots__ = ("error",)

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        if self.error is not None:
            raise self.error

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None and not isinstance(error, RemoteProtocolError):
            self.error = error
