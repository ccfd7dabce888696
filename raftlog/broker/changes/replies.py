"""The answer to a request that takes several steps, each after the answer to the one before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from raftlog.broker.unforeseen import raise_soon
from raftlog.errors import RaftlogError, RetriableError
from raftlog.ports import Answer, Scheduler

S = TypeVar("S")
T = TypeVar("T")


class Reply(Generic[T]):
    """One request's answer, given once. An unexpected error in a step ends the request, and is reported."""

    __slots__ = ("_answer", "_scheduler")

    def __init__(self, scheduler: Scheduler, answer: Answer[T]) -> None:
        self._scheduler = scheduler
        self._answer: Answer[T] | None = answer

    def give(self, outcome: T | RaftlogError) -> None:
        """End the request with its result or error, unless it has ended."""
        answer, self._answer = self._answer, None
        if answer is not None:
            try:
                answer(outcome)
            except Exception as error:  # noqa: BLE001  the caller's error: reported
                raise_soon(self._scheduler, error)

    def attempt(self, step: Callable[[], None]) -> None:
        """Take a step of the request. An error ends the request: the caller waits for the answer."""
        try:
            step()
        except RaftlogError as error:
            self.give(error)
        except Exception as error:  # noqa: BLE001  reported, and answered
            raise_soon(self._scheduler, error)
            self.give(RetriableError("outcome_unknown", f"an unexpected error on this node: {error!r}"))

    def then(self, step: Callable[[S], None]) -> Answer[S]:
        """Return a callback that takes the next step with a result, or ends the request with an error."""

        def answered(outcome: S | RaftlogError) -> None:
            if isinstance(outcome, RaftlogError):
                self.give(outcome)
            else:
                self.attempt(lambda: step(outcome))

        return answered
