"""A change of voters requested through the API: the request to the quorum, and the answer from its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from metadata.quorum.protocol import VotersChanged
from metadata.voters.changes import Action, VoterChange
from raftlog.api.quorum import VotersChange
from raftlog.broker.changes.quorum import TIMEOUT_SECONDS, QuorumAdministrator
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError


class Quorum:
    """A quorum that answers in a later turn."""

    def __init__(self, answer: VotersChanged) -> None:
        self.answer = answer
        self.asked: list[tuple[VoterChange, bool, float]] = []

    def change_voters(
        self, change: VoterChange, done: Callable[[VotersChanged], None], *, plan: bool = False, timeout: float = 0.0
    ) -> None:
        self.asked.append((change, plan, timeout))
        asyncio.get_running_loop().call_soon(done, self.answer)


def administrator(quorum: Quorum) -> QuorumAdministrator:
    return QuorumAdministrator(None, quorum, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("verdict", "plan"), [("applied", False), ("planned", True)])
@pytest.mark.parametrize("action", ["add", "remove"])
async def test_the_quorum_gets_the_requested_change(action: str, verdict: str, plan: bool) -> None:
    quorum = Quorum(VotersChanged(1, verdict, 17, (1, 2), (1, 2, 3)))
    made = await administrator(quorum).change_voters(action, 3, plan=plan)
    assert quorum.asked == [(VoterChange(Action(action), 3), plan, TIMEOUT_SECONDS)]
    assert made == VotersChange(verdict == "applied", [1, 2], [1, 2, 3], 0, 1, 17)


@pytest.mark.parametrize(
    ("answer", "kind", "code", "detail"),
    [
        (VotersChanged(1, "refused", code="not_found", detail="node 3"), InvalidRequest, "not_found", "node 3"),
        (VotersChanged(1, "unknown", detail="no answer"), RetriableError, "outcome_unknown", "no answer"),
        (VotersChanged(1, "unknown"), RetriableError, "outcome_unknown", "the quorum answered 'unknown'"),
    ],
)
async def test_each_other_outcome_has_its_own_error(
    answer: VotersChanged, kind: type[RaftlogError], code: str, detail: str
) -> None:
    with pytest.raises(kind) as told:
        await administrator(Quorum(answer)).change_voters("add", 3, plan=False)
    assert (told.value.code, told.value.detail) == (code, detail)
