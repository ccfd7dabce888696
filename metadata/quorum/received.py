"""The check of a leader's snapshot before this node installs it, in steps.

A snapshot replaces the log, on the disk too. If its state could not be read, this node could never start again; so it
is read first, some milliseconds in each tick, and installed only then. Whatever reading it raises is the peer's fault,
and the snapshot is refused: a damaged or forged one, or one of a newer version.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from metadata.raft.pysyncobj_engine import PySyncObjEngine
from raftlog.errors import RemoteProtocolError
from raftlog.model import BrokerId

from .machine import StateMachine


class ReceivedSnapshots:
    """The snapshots that one node receives, one at a time."""

    def __init__(
        self,
        engine: PySyncObjEngine,
        machine: StateMachine,
        on_unreadable: Callable[[BrokerId, RemoteProtocolError], None],
    ) -> None:
        """`on_unreadable` is called with the sender of a snapshot that was refused."""
        self._engine = engine
        self._machine = machine
        self._on_unreadable = on_unreadable
        self._check: Generator[None, None, None] | None = None

    @property
    def under_way(self) -> bool:
        """Whether a snapshot is being checked."""
        return self._engine.received_state is not None

    def go_on(self, has_time: Callable[[], bool]) -> None:
        """Check the received snapshot while there is time, at least one step, and install it after the last one."""
        received = self._engine.received_state
        if received is None:
            return
        sender, state = received
        if self._check is None:
            self._check = self._machine.check_in_steps(state)
        try:
            next(self._check)
            while has_time():
                next(self._check)
        except StopIteration:
            self._end(readable=True)
        except RemoteProtocolError as error:
            self._end(readable=False)
            self._on_unreadable(sender, error)
        except Exception as error:  # noqa: BLE001  nothing but the peer's bytes was touched
            self._end(readable=False)
            self._on_unreadable(sender, RemoteProtocolError(f"its snapshot cannot be read: {error!r}"))

    def _end(self, *, readable: bool) -> None:
        self._check = None
        self._engine.take_received(readable=readable)
