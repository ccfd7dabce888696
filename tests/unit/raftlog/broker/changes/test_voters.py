"""A change of voters as the API asks for it: what the quorum is asked, and what its answer becomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from metadata.quorum.protocol import VotersChanged
from metadata.voters.changes import Action, VoterChange
from raftlog.broker.changes.voters import TIMEOUT_SECONDS, change_voters
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import VotersChange


class Quorum:
    """Answers in a later turn."""

    def __init__(self, answer: VotersChanged) -> None:
        self.answer = answer
        self.asked: list[tuple[VoterChange, bool, float]] = []

    def change_voters(
        self, change: VoterChange, done: Callable[[VotersChanged], None], *, plan: bool = False, timeout: float = 0.0
    ) -> None:
        self.asked.append((change, plan, timeout))
        asyncio.get_running_loop().call_soon(done, self.answer)


@pytest.mark.parametrize(("verdict", "plan"), [("applied", False), ("planned", True)])
@pytest.mark.parametrize("action", ["add", "remove"])
async def test_a_change_reaches_the_quorum_as_it_was_asked(action: str, verdict: str, plan: bool) -> None:
    quorum = Quorum(VotersChanged(1, verdict, 17, (1, 2), (1, 2, 3)))
    made = await change_voters(quorum, action, 3, plan=plan)
    assert quorum.asked == [(VoterChange(Action(action), 3), plan, TIMEOUT_SECONDS)]
    assert made == VotersChange((1, 2), (1, 2, 3), verdict == "applied", 17)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "kind", "code", "detail"),
    [
        (VotersChanged(1, "refused", code="not_found", detail="node 3"), InvalidRequest, "not_found", "node 3"),
        (VotersChanged(1, "unknown", detail="no answer"), RetriableError, "outcome_unknown", "no answer"),
        (VotersChanged(1, "unknown"), RetriableError, "outcome_unknown", "the quorum answered 'unknown'"),
    ],
)
async def test_any_other_answer_is_an_error_of_its_own(
    answer: VotersChanged, kind: type[RaftlogError], code: str, detail: str
) -> None:
    with pytest.raises(kind) as told:
        await change_voters(Quorum(answer), "add", 3, plan=False)
    assert (told.value.code, told.value.detail) == (code, detail)
