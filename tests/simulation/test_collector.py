"""The garbage collector between two worlds: nothing that a world left is frozen."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import ClassVar

import pytest

from jepsen_like.simulator.world.collector import seldom_collected


class Chain:
    """A cycle whose finalizer leaves another one, as that of a suspended coroutine does."""

    left: ClassVar[list[weakref.ref[Chain]]] = []

    def __init__(self, more: int) -> None:
        self.itself = self
        self.more = more
        self.left.append(weakref.ref(self))

    def __del__(self) -> None:
        if self.more:
            Chain(self.more - 1)


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_garbage_that_finalizers_leave_is_not_frozen() -> None:
    Chain(4)
    with seldom_collected():
        assert [one() for one in Chain.left] == [None] * 5


def test_the_thresholds_return_after_a_run() -> None:
    before = gc.get_threshold()
    with seldom_collected():
        assert gc.get_threshold() != before
    assert gc.get_threshold() == before
