"""The answer to a scrape: collected in slices of the loop, written on a thread, shared by all that ask meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

from raftlog.metrics import catalogue as names
from raftlog.metrics.measure import Family

from .prometheus_text import render

SLICE_SECONDS = 0.003
"""Time after which the collection lets the loop go on, in seconds. A step takes another millisecond at most."""


class Exposition:
    """The text of a node's metrics."""

    def __init__(self, collect: Callable[[], Iterator[Family | None]]) -> None:
        """`collect` yields the families, and None wherever the loop may go on."""
        self._collect = collect
        self._families: asyncio.Task[list[Family]] | None = None
        self._texts: dict[str, asyncio.Task[tuple[bytes, str]]] = {}
        """`Accept` header → the text that is being made for it."""

    async def text(self, accept: str) -> tuple[bytes, str]:
        """Return the text and its content type. A caller that is cancelled does not disturb the others."""
        # The library looks at two media types only: headers that differ otherwise share a text, a bounded number.
        wanted = "application/openmetrics-text; version=1.0.0" if "application/openmetrics-text" in accept else ""
        making = self._texts.get(wanted)
        if making is None:
            making = self._texts[wanted] = asyncio.create_task(self._text(wanted))
            making.add_done_callback(lambda _: self._texts.pop(wanted, None))
        return await asyncio.shield(making)

    async def _text(self, accept: str) -> tuple[bytes, str]:
        if self._families is None:
            self._families = asyncio.create_task(self._collected())
            self._families.add_done_callback(self._ended)
        families = await asyncio.shield(self._families)
        return await asyncio.to_thread(render, families, accept)

    def _ended(self, task: asyncio.Task[list[Family]]) -> None:
        self._families = None

    async def _collected(self) -> list[Family]:
        families: list[Family] = []
        spent = 0.0
        began = time.perf_counter()
        for family in self._collect():
            if family is not None:
                families.append(family)
            now = time.perf_counter()
            if now - began >= SLICE_SECONDS:
                spent += now - began
                await asyncio.sleep(0)
                began = time.perf_counter()
        spent += time.perf_counter() - began
        families.append(Family.of(names.SCRAPE_SECONDS, spent))
        return families

    async def close(self) -> None:
        """Cancel what is being made."""
        tasks = [*self._texts.values(), *([self._families] if self._families is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
