"""The threads for larger bodies: what could not be handed to one does not count as under way."""

from __future__ import annotations

import threading

import pytest

from http_api.web.context import CodecThreads
from http_api.web.limits import OFFLOAD_BYTES
from raftlog.errors import RetriableError

LARGE = OFFLOAD_BYTES + 1


async def test_a_body_that_no_thread_could_take_leaves_its_place_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = CodecThreads(threads=1, queue=1)
    try:
        with monkeypatch.context() as short:
            short.setattr(threading.Thread, "start", refused)
            for _ in range(3):
                with pytest.raises(RuntimeError, match="can't start new thread"):
                    await threads.run(LARGE, int)
        assert await threads.run(LARGE, lambda: 7) == 7
    except RetriableError as error:
        pytest.fail(f"its places are gone: {error.detail}")
    finally:
        threads.close()
