"""`from raftlog.sync import Producer, Consumer, Admin`: the client for programs without an event loop.

Names, arguments, results and errors are the same as in `raftlog`, without `await`. Any thread may call it.
"""

from __future__ import annotations

from raftlog.client.blocking.admin import Admin
from raftlog.client.blocking.consumer import Consumer
from raftlog.client.blocking.group_consumer import GroupConsumer
from raftlog.client.blocking.handover import SentRecord
from raftlog.client.blocking.producer import Producer
from raftlog.client.blocking.transaction import Transaction, commit_together

__all__ = ["Admin", "Consumer", "GroupConsumer", "Producer", "SentRecord", "Transaction", "commit_together"]
