"""Awaiting answers that are given to a callback."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.ports import Answer
from raftlog.system.futures import answer_of, future_of


class Operation:
    """An operation that ends when the test says so."""

    def __init__(self) -> None:
        self.answer: Callable[[int | RaftlogError], None] | None = None

    def ask(self, answer: Answer[int]) -> None:
        self.answer = answer

    def end(self, outcome: int | RaftlogError) -> None:
        assert self.answer is not None
        self.answer(outcome)


async def test_a_result_is_returned_and_an_error_is_raised() -> None:
    operation = Operation()
    future = future_of(operation.ask)
    operation.end(7)
    assert await future == 7
    future = future_of(operation.ask)
    operation.end(InvalidRequest("invalid_request", "no"))
    with pytest.raises(InvalidRequest, match="no"):
        await future


async def test_an_answer_that_comes_at_once_is_returned() -> None:
    assert await future_of(lambda answer: answer(1)) == 1
    assert await answer_of(lambda answer: answer(2)) == 2


async def test_an_operation_that_is_refused_at_once_raises() -> None:
    def refuse(answer: Answer[int]) -> None:
        raise InvalidRequest("invalid_request", "not even begun")

    with pytest.raises(InvalidRequest):
        future_of(refuse)


@pytest.mark.parametrize("outcome", [7, InvalidRequest("invalid_request", "no")])
async def test_an_operation_ends_even_if_its_caller_is_gone(outcome: int | RaftlogError) -> None:
    operation = Operation()
    future = future_of(operation.ask)
    future.cancel()
    operation.end(outcome)
    assert future.cancelled()
