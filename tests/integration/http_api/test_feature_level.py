"""The API, the client and `raftlog cluster finalize` for the feature level, in front of a broker in memory, and the
administrator's own part in front of a real image."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metadata.commands.cluster import SetFeatureLevel
from metadata.commands.envelope import Command
from metadata.commands.results import CommandResult, Refused
from raftlog import Admin
from raftlog.api.cluster import FeatureLevelFinalized
from raftlog.broker.changes.quorum import QuorumAdministrator
from raftlog.errors import InvalidRequest
from raftlog.model import BrokerId, QuorumStatus
from raftlog.version import FEATURE_LEVEL
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Api
from tests.support.metadata.cluster import Cluster

pytestmark = pytest.mark.integration

PATH = "/v1/cluster/feature-level"


async def test_the_level_is_raised_and_a_plan_changes_nothing(api: Api, broker: FakeBroker) -> None:
    planned = await api.post(PATH, {"plan": True})
    assert planned.document == {"applied": False, "feature_level_before": 1, "feature_level": FEATURE_LEVEL}
    assert broker.view.feature_level == 1
    assert (await api.post(PATH, {"level": 3})).document["feature_level"] == broker.view.feature_level == 3
    async with Admin(f"127.0.0.1:{api.port}") as admin:
        done = await admin.finalize_feature_level()
        assert (done.applied, done.feature_level_before, done.feature_level) == (True, 3, FEATURE_LEVEL)
        broker.fail["finalize_feature_level"] = InvalidRequest("unsupported_version", "broker 2 is old")
        with pytest.raises(InvalidRequest, match="broker 2 is old"):
            await admin.finalize_feature_level()


@pytest.mark.parametrize("body", [{"level": 0}, {"level": "5"}, {"levels": 5}, {"plan": 1}])
async def test_what_is_no_level_is_refused_s11(api: Api, broker: FakeBroker, body: dict[str, object]) -> None:
    (await api.post(PATH, body)).problem("invalid_request")
    assert broker.view.feature_level == 1


class Administrator:
    """Decides at once on a real image."""

    def __init__(self, *levels: int) -> None:
        self.cluster = Cluster(0)
        for number, level in enumerate(levels):
            self.cluster.do(self.cluster.registration(number, feature_level=level))
        self.voters = tuple(BrokerId(number) for number in range(len(levels)))

    async def catch_up(self) -> None:
        """It is."""

    async def decide(self, command: Command) -> CommandResult:
        result = self.cluster.apply(command)
        if isinstance(result, Refused):
            raise result.error()
        return result

    def leader_status(self, done: Callable[[QuorumStatus], None]) -> None:
        done(QuorumStatus(BrokerId(0), BrokerId(0), self.cluster.term, 0, 0, 0, self.voters))

    async def finalize(self, level: int | None = None, *, plan: bool = False) -> FeatureLevelFinalized:
        quorum = QuorumAdministrator(self.cluster.view, self, self)  # type: ignore[arg-type]
        return await quorum.finalize_feature_level(level, plan=plan)


async def test_it_rises_to_what_every_broker_understands() -> None:
    known = Administrator(5, 4, 5)
    assert await known.finalize(plan=True) == FeatureLevelFinalized(False, 1, 4)
    assert known.cluster.image.feature_level == 1
    assert await known.finalize() == FeatureLevelFinalized(True, 1, 4)
    assert known.cluster.image.feature_level == 4
    with pytest.raises(InvalidRequest, match="broker 1 supports feature level 4, not 5"):
        await known.finalize(5)
    with pytest.raises(InvalidRequest, match="cannot be lowered"):
        await known.finalize(3)
    assert await known.finalize() == FeatureLevelFinalized(True, 4, 4)


async def test_it_does_not_rise_while_a_voter_or_an_observer_is_of_unknown_version() -> None:
    """A node that applies the log and meets what it does not know has to stop."""
    known = Administrator(5, 5, 5)
    known.voters = (*known.voters, BrokerId(7))
    for plan in (True, False):
        with pytest.raises(InvalidRequest, match="node 7 is part of the quorum but not registered"):
            await known.finalize(plan=plan)
    assert known.cluster.image.feature_level == 1


async def test_a_broker_that_registered_meanwhile_is_asked_where_it_is_decided() -> None:
    known = Administrator(5, 5, 5)
    known.cluster.do(known.cluster.registration(3, feature_level=4))
    assert known.cluster.refusal(SetFeatureLevel(5)) == "unsupported_version"
