"""`from raftlog.sync import Producer, Consumer, Admin`: the client for programs without an event loop.

The same names, arguments, results and errors as in `raftlog`, without `await`; any thread may call them.
"""

from __future__ import annotations

from .client.blocking_admin import Admin
from .client.blocking_consumer import Consumer
from .client.blocking_group_consumer import GroupConsumer
from .client.blocking_handover import SentRecord
from .client.blocking_producer import Producer
from .client.blocking_transaction import Transaction, commit_together

__all__ = ["Admin", "Consumer", "GroupConsumer", "Producer", "SentRecord", "Transaction", "commit_together"]
