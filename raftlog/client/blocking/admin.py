"""The blocking `Admin`: each method of the asyncio one (`raftlog/client/admin.py`) runs to its end."""

from __future__ import annotations

from typing import Any

from raftlog.client.admin import Admin as AsyncAdmin

from .loop_thread import LoopThread
from .twin import Twin


class Admin(Twin, of=AsyncAdmin):
    """Administers a cluster, from any thread.

    `close` it, or use it with `with`.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(AsyncAdmin(*args, **keywords), LoopThread(self, "admin"))
