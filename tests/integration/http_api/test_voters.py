"""`POST /v1/quorum/voters`, `Admin.add_voter`, `raftlog quorum add|remove`, in front of a broker in memory."""

from __future__ import annotations

import pytest

from raftlog import Admin
from raftlog.client import admin as admin_module
from raftlog.errors import InvalidRequest, RetriableError
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Api

pytestmark = pytest.mark.integration

PATH = "/v1/quorum/voters"


async def test_a_voter_is_added_and_removed_and_a_plan_changes_nothing(api: Api, broker: FakeBroker) -> None:
    planned = await api.post(PATH, {"action": "add", "node": 3, "plan": True})
    assert planned.document == {
        "applied": False,
        "voters_before": [1, 2],
        "voters": [1, 2, 3],
        "failures_survived_before": 0,
        "failures_survived": 1,
        "index": None,
    }
    assert broker.voters == (1, 2)
    added = (await api.post(PATH, {"action": "add", "node": 3})).document
    assert (added["applied"], added["voters"], added["index"]) == (True, [1, 2, 3], 7)
    assert (await api.post(PATH, {"action": "remove", "node": 2})).document["voters"] == [1, 3]


@pytest.mark.parametrize(
    "body", [{}, {"action": "add"}, {"action": "swap", "node": 1}, {"action": "add", "node": -1}, {"node": 1}]
)
async def test_what_is_no_change_is_refused(api: Api, broker: FakeBroker, body: dict[str, object]) -> None:
    (await api.post(PATH, body)).problem("invalid_request")
    assert broker.voters == (1, 2)


async def test_the_client_hears_why_not(api: Api, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_module, "CHANGE_TIMEOUT", 0.3)
    async with Admin(f"127.0.0.1:{api.port}") as admin:
        assert (await admin.add_voter(3)).voters == [1, 2, 3]
        broker.fail["change_voters"] = InvalidRequest("quorum_majority_at_risk", "bring back 2 first")
        with pytest.raises(InvalidRequest, match="bring back 2 first"):
            await admin.remove_voter(1)
        broker.fail["change_voters"] = RetriableError("voter_not_caught_up", "node 9 lacks 4711 entries")
        with pytest.raises(RetriableError, match="4711"):
            await admin.add_voter(9, plan=True)
