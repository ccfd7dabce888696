"""A blocking group consumer without a cluster: completion callbacks of commits run on the program's own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from raftlog.errors import RaftlogError
from raftlog.sync import GroupConsumer
from tests.support.clusters.held_port import HOST, HeldPort

CALLS: dict[str, Callable[[GroupConsumer], object]] = {
    "poll": lambda consumer: consumer.poll(10, timeout=0.0),
    "commit": lambda consumer: consumer.commit({}),
    "close": lambda consumer: consumer.close(),
}


@pytest.mark.parametrize("call", CALLS)
def test_each_call_of_the_program_tells_what_was_decided(call: str) -> None:
    """A commit of no offsets is decided at once; its callback waits for the program's next call, and runs once, in
    order, on the calling thread."""
    told: list[tuple[int, RaftlogError | None, threading.Thread]] = []

    def done(number: int) -> Callable[[RaftlogError | None], None]:
        return lambda error: told.append((number, error, threading.current_thread()))

    with HeldPort() as nobody:
        consumer = GroupConsumer(f"http://{HOST}:{nobody.number}", "g", ["t"])
        try:
            consumer.commit_soon({}, done(1))
            consumer.commit_soon({}, done(2))
            assert consumer.positions == {} and told == [], "not by a call that only looks"
            CALLS[call](consumer)
            assert told == [(1, None, threading.current_thread()), (2, None, threading.current_thread())]
        finally:
            consumer.close()
    assert len(told) == 2
