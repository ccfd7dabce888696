"""The client of `metadata-set`: the topics of the cluster are a set that only grows.

A read first makes a change of its own, and then lists the topics of the same node (`nodes.py`): the list must have
every topic that was created before (S7).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raftlog.errors import RaftlogError

from .messages import Told
from .nodes import NodeAdmin, looking
from .process import ClientSettings
from .registers import LOOK


class TopicSetClient:
    def __init__(self, settings: ClientSettings) -> None:
        self._nodes = NodeAdmin(settings.bootstrap)
        self._prefix = f"set-{settings.options['tag']}-"
        (self._barrier,) = settings.options["topics"]

    async def invoke(self, f: str, value: Any, hint: Mapping[str, Any]) -> Told:
        if f == "read":
            async with looking(self._nodes) as admin:
                await admin.alter_topic(self._barrier, LOOK)
                found = await admin.list_topics(f"{self._prefix}[0-9]+")
            return Told("ok", [int(topic.name.removeprefix(self._prefix)) for topic in found])
        if f != "add":
            raise ValueError(f"metadata-set has no operation {f}")
        admin = await self._nodes.admin()
        try:
            await admin.create_topic(f"{self._prefix}{value}", 1, 1)
        except RaftlogError:
            await self._nodes.another()
            raise
        return Told("ok", value)

    async def close(self) -> None:
        await self._nodes.close()
