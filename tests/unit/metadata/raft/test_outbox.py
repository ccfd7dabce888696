"""pysyncobj sends only one kind of message by itself: another one would be sent in a form that no peer reads."""

from __future__ import annotations

from typing import Any

import pytest

from metadata.raft.pysyncobj_ports import Outbox
from raftlog.errors import InvariantViolation


def test_a_message_that_pysyncobj_must_not_build_is_refused_by_its_name() -> None:
    outbox = Outbox()
    node: Any = object()
    with pytest.raises(InvariantViolation, match="unexpected message of type 'append_entries'"):
        outbox.send(node, {"type": "append_entries", "term": 1})
    assert not outbox, "nothing was queued"
