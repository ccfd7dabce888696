"""The client of `topics`: topics are created and deleted, and exist or do not.

A refusal only says that nothing was done: a node may refuse by a stale view. Reads show what exists, and they go to a
node that has just made a change of its own (`nodes.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raftlog.errors import InvalidRequest, RaftlogError

from .messages import Told
from .nodes import NodeAdmin, looking
from .process import ClientSettings
from .registers import LOOK


class TopicsClient:
    def __init__(self, settings: ClientSettings) -> None:
        self._nodes = NodeAdmin(settings.bootstrap)
        self._prefix = f"made-{settings.options['tag']}-"
        (self._barrier,) = settings.options["topics"]

    async def invoke(self, f: str, value: Any, hint: Mapping[str, Any]) -> Told:
        name = f"{self._prefix}{value[0]}"
        if f == "read":
            async with looking(self._nodes) as admin:
                await admin.alter_topic(self._barrier, LOOK)
                try:
                    await admin.describe_topic(name)
                except InvalidRequest as error:
                    if error.code != "unknown_topic":
                        raise
                    return Told("ok", [value[0], False])
            return Told("ok", [value[0], True])
        if f not in {"create", "delete"}:
            raise ValueError(f"topics has no operation {f}")
        admin = await self._nodes.admin()
        try:
            await (admin.create_topic(name, 1, 1) if f == "create" else admin.delete_topic(name))
        except RaftlogError:
            await self._nodes.another()
            raise
        return Told("ok", value)

    async def close(self) -> None:
        await self._nodes.close()
