"""HTTP consumer instances as the image holds them. Only the methods that write here change anything, and each notes an
event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from metadata.records.instances import InstanceChanged, InstanceEvent, InstanceRecord, InstanceRemoved, Instances


class InstancesState(Instances):
    """The image's instances."""

    def __init__(self, note: Callable[[InstanceEvent], None]) -> None:
        super().__init__()
        self._note = note
        self._of_principal: Counter[str] = Counter()
        """Principal → the number of its instances; derived."""

    def count_of(self, principal: str) -> int:
        """Return the number of instances of a principal."""
        return self._of_principal[principal]

    def put(self, record: InstanceRecord) -> None:
        """Store an instance."""
        self._uncount(record.group_id, record.name)
        self._of_principal[record.principal] += 1
        self._change(InstanceChanged(record))

    def remove(self, record: InstanceRecord) -> None:
        """Remove an instance."""
        self._uncount(record.group_id, record.name)
        self._change(InstanceRemoved(record.group_id, record.name))

    def _uncount(self, group_id: str, name: str) -> None:
        known = self.instance(group_id, name)
        if known is not None:
            self._of_principal[known.principal] -= 1
            if not self._of_principal[known.principal]:
                del self._of_principal[known.principal]

    def _change(self, event: InstanceEvent) -> None:
        self.on_event(event)
        self._note(event)
