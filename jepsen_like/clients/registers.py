"""The client of `metadata-registers`: a topic's setting is a register in the metadata.

A write sets `retention.ms`. A read sets another setting to its current value, and takes the register from that node's
answer: a node answers once its view has the change, so the view has everything that was decided before, and the read is
linearizable (S7); a read of the view alone would not be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raftlog.errors import RaftlogError

from .messages import Told
from .nodes import NodeAdmin, looking
from .process import ClientSettings

BASE_MS = 3_600_000
"""A register's value is the number of milliseconds above this."""
REGISTER, LOOK = "retention.ms", {"segment.ms": "3600000"}


class RegistersClient:
    def __init__(self, settings: ClientSettings) -> None:
        self._nodes = NodeAdmin(settings.bootstrap)

    async def invoke(self, f: str, value: Any, hint: Mapping[str, Any]) -> Told:
        topic, argument = value
        if f == "read":
            async with looking(self._nodes) as admin:
                seen = (await admin.alter_topic(topic, LOOK)).configs[REGISTER]
            return Told("ok", [topic, int(seen) - BASE_MS])
        if f != "write":
            raise ValueError(f"metadata-registers has no operation {f}")
        admin = await self._nodes.admin()
        try:
            await admin.alter_topic(topic, {REGISTER: str(BASE_MS + argument)})
        except RaftlogError:
            await self._nodes.another()
            raise
        return Told("ok", value)

    async def close(self) -> None:
        await self._nodes.close()
