"""`from raftlog.sync import Producer, Consumer, Admin`: the client for programs without an event loop.

The same names, arguments, results and errors as in `raftlog`, without `await`; any thread may call them.
"""

from __future__ import annotations

from raftlog.client.blocking.admin import Admin
from raftlog.client.blocking.consumer import Consumer
from raftlog.client.blocking.group_consumer import GroupConsumer
from raftlog.client.blocking.handover import SentRecord
from raftlog.client.blocking.producer import Producer
from raftlog.client.blocking.transaction import Transaction, commit_together

__all__ = ["Admin", "Consumer", "GroupConsumer", "Producer", "SentRecord", "Transaction", "commit_together"]
