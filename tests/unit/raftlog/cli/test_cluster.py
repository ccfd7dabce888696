"""`raftlog cluster` and `raftlog quorum`, with the real HTTP API and with answers made by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from metadata.view import BrokerChanged
from raftlog.api.cluster import HealthInfo, RollCheck
from raftlog.api.quorum import QuorumInfo
from raftlog.cli.commands.cluster import NodeHealth, _merged
from raftlog.cli.commands.quorum import _text as quorum_text
from raftlog.cli.commands.quorum import description
from raftlog.cli.commands.waiting import until
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.model import BrokerId, Endpoint
from tests.support.cli_runner import Background, Result, impatient, run
from tests.support.client.fake_broker import NODE, FakeBroker
from tests.support.client.fake_cluster import FakeCluster
from tests.support.http.api_client import Api, running_api


class OneNode(FakeBroker):
    """A broker whose own address is the one that is asked."""

    def move_to(self, port: int) -> None:
        own = self.view.broker(NODE)
        assert own is not None
        self._event(BrokerChanged(replace(own, api=Endpoint("127.0.0.1", port))))

    def register(self, number: int, *, fenced: bool = False) -> None:
        own = self.view.broker(NODE)
        assert own is not None
        self._event(BrokerChanged(replace(own, broker_id=BrokerId(number), fenced=fenced)))


@pytest.fixture
def broker() -> OneNode:
    return OneNode()


@pytest.fixture
def api(broker: OneNode) -> Iterator[Api]:
    with Background(running_api(broker)) as background:
        broker.move_to(background.cluster.port)
        yield background.cluster


def ask(api: Api, *arguments: str) -> Result:
    return run(*arguments, bootstrap=f"127.0.0.1:{api.port}")


class TestInfo:
    def test_table(self, api: Api) -> None:
        result = ask(api, "cluster", "info")
        assert result.code == 0
        assert result.lines[0].split() == ["ClusterId:", "fake-cluster"]
        address = f"127.0.0.1:{api.port}"
        assert result.table("NodeId") == [["NodeId", "Api", "Rack", "Status"], ["1", address, "rack-a", "alive"]]
        wide = ask(api, "cluster", "info", "-o", "wide").table("NodeId")
        assert wide[1] == ["1", address, "rack-a", "alive", "127.0.0.1:9641", "7"]

    def test_data_is_the_apis_answer(self, api: Api) -> None:
        shown = ask(api, "cluster", "info", "-o", "json").json
        assert shown["cluster_id"] == "fake-cluster" and shown["nodes"][0]["incarnation"] == 7
        assert ask(api, "cluster", "info", "-o", "yaml").yaml == shown


class TestWait:
    def test_it_returns_when_the_cluster_is_healthy(
        self, api: Api, monkeypatch: pytest.MonkeyPatch, broker: OneNode
    ) -> None:
        one_voter(monkeypatch, broker)
        broker.health_now = HealthInfo(False, ["t/0 has no leader"])
        timer = threading.Timer(0.3, setattr, (broker, "health_now", HealthInfo(True, [])))
        timer.start()
        result = ask(api, "cluster", "wait")
        timer.join()
        assert (result.code, result.text) == (0, "the cluster is healthy\n")

    def test_the_time_is_up(self, api: Api, broker: OneNode) -> None:
        broker.health_now = HealthInfo(False, ["t/0 has no leader"])
        result = ask(api, "cluster", "wait", "--timeout", "200ms")
        assert result.code == 10
        assert result.lines[0].startswith("the time is up") and "  t/0 has no leader" in result.lines

    def test_a_cluster_that_is_down_is_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        impatient(monkeypatch)
        for more in ((), ("--without", "1")):
            result = run("cluster", "wait", "--timeout", "100ms", *more, bootstrap="127.0.0.1:1")
            assert result.code == 10 and "the cluster does not answer" in result.text

    def test_the_loss_of_a_node_is_waited_for(self, api: Api, broker: OneNode) -> None:
        broker.register(2)
        early = ask(api, "cluster", "wait", "--without", "2", "--timeout", "100ms")
        assert early.code == 10 and "node 1 does not know yet that node 2 is down" in early.text
        broker.register(2, fenced=True)
        found = ask(api, "cluster", "wait", "--without", "2")
        assert (found.code, found.text) == (0, "node 2 is down, and other nodes lead its partitions\n")

    def test_a_partition_without_leader_is_waited_for(self, api: Api, broker: OneNode) -> None:
        assert ask(api, "topic", "create", "t").code == 0
        broker.register(2, fenced=True)
        assert ask(api, "cluster", "wait", "--without", "2").code == 0
        broker.set_leader("t", 0, -1)
        result = ask(api, "cluster", "wait", "--without", "2", "--timeout", "100ms")
        assert result.code == 10 and "t/0 has no leader in the view of node 1" in result.text

    def test_a_refused_credential_may_become_known_s12(self) -> None:
        refused = InvalidRequest("unauthenticated", "no valid credential")
        answers: list[list[str] | InvalidRequest] = [refused, refused, []]

        async def look() -> list[str]:
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if isinstance(answer, InvalidRequest):
                raise answer
            return answer

        assert until(look, 20.0) == []
        answers[:] = [refused]
        with pytest.raises(InvalidRequest, match="no valid credential"):
            until(look, 0.1)

    def test_a_node_that_does_not_exist_is_an_error(self, api: Api) -> None:
        result = ask(api, "cluster", "wait", "--without", "9")
        assert result.code == 1 and "the cluster has no node 9 (it has 1)" in result.stderr


class TestHealth:
    """The fake's quorum has voters 1 and 2, of which only 1 is registered."""

    NEVER_CAME = "node 2 is a voter but has never registered"

    def test_a_healthy_cluster(self, api: Api, monkeypatch: pytest.MonkeyPatch, broker: OneNode) -> None:
        one_voter(monkeypatch, broker)
        result = ask(api, "cluster", "health")
        assert result.code == 0
        assert result.lines[0].split() == ["Healthy:", "yes"]
        assert ask(api, "cluster", "health", "-o", "json").json == {
            "healthy": True,
            "problems": [],
            "controller": None,
            "nodes": [
                {
                    "id": 1,
                    "api": f"127.0.0.1:{api.port}",
                    "answers": True,
                    "ready": True,
                    "problems": [],
                    "error": None,
                }
            ],
        }

    def test_problems_are_shown_and_the_exit_code_is_10(self, api: Api, broker: OneNode) -> None:
        broker.health_now = HealthInfo(False, ["t/0 has no leader", "t/1 has no leader"])
        result = ask(api, "cluster", "health")
        assert result.code == 10
        assert result.lines[0].split() == ["Healthy:", "no"]
        expected = [self.NEVER_CAME, "node 1 is not ready", "t/0 has no leader", "t/1 has no leader"]
        assert [line.strip() for line in result.lines if line.startswith("  ")] == expected
        data = ask(api, "cluster", "health", "-o", "yaml")
        assert data.code == 10 and data.yaml["problems"] == expected and data.yaml["healthy"] is False

    def test_a_quorum_that_does_not_answer_is_a_problem(self, api: Api, broker: OneNode) -> None:
        broker.fail["quorum_status"] = RaftlogError("internal_error", "it broke")
        result = ask(api, "cluster", "health", "-o", "json")
        assert result.code == 10
        assert result.json["problems"] == ["the metadata quorum does not answer: it broke"]

    def test_a_cluster_that_is_down_is_unhealthy_and_no_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        impatient(monkeypatch)
        result = run("cluster", "health", bootstrap="127.0.0.1:1")
        assert result.code == 10
        assert "the cluster does not answer" in result.text
        assert "Error" not in result.stderr

    def test_wrong_addresses_are_an_error(self) -> None:
        assert run("cluster", "health", bootstrap="nonsense").code == 1

    def test_every_node_is_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("raftlog.cli.commands.cluster.HEALTH_TIMEOUT", 0.3)
        with Background(FakeCluster(nodes=3)) as background:
            cluster = background.cluster
            silent = cluster.nodes[3].api_address
            background.call(cluster.nodes[3].kill())
            # These nodes do not know /v1/health: they answer, but not correctly.
            result = run("cluster", "health", "-o", "json", bootstrap=cluster.nodes[1].api_address)
        assert result.code == 10
        nodes = {node["id"]: node for node in result.json["nodes"]}
        assert [nodes[number]["answers"] for number in (1, 2, 3)] == [False, False, False]
        assert nodes[3]["error"].startswith(f"cannot connect to {silent}")
        assert any(problem.startswith(f"node 3 does not answer at {silent}: ") for problem in result.json["problems"])

    def test_a_line_on_which_nodes_disagree_names_its_nodes(self) -> None:
        nodes = [
            NodeHealth(0, "a:1", True, True, ["t/0 has no leader"]),
            NodeHealth(1, "a:2", True, False, ["the metadata quorum has no leader", "t/0 has no leader"]),
            NodeHealth(2, "a:3", False, error="refused"),
        ]
        assert _merged(nodes) == [
            "node 2 does not answer at a:3: refused",
            "node 1 is not ready",
            "t/0 has no leader",
            "the metadata quorum has no leader (reported by node 1)",
        ]


def one_voter(monkeypatch: pytest.MonkeyPatch, broker: OneNode) -> None:
    from raftlog.model import QuorumStatus

    async def status() -> QuorumStatus:
        return QuorumStatus(NODE, NODE, 4, 10, 9, 11, (NODE,), {NODE: 11})

    monkeypatch.setattr(broker.quorum, "status", status)


class TestQuorum:
    def test_kafkas_columns(self, api: Api) -> None:
        result = ask(api, "quorum", "describe")
        assert result.code == 0
        head = dict(line.split(maxsplit=1) for line in result.lines[:7])
        assert head["LeaderId:"] == "1" and head["LeaderEpoch:"] == "4" and head["HighWatermark:"] == "11"
        assert head["MaxFollowerLag:"] == "1" and head["CurrentVoters:"] == "1,2" and head["CurrentObservers:"] == "-"
        assert result.table("NodeId") == [
            ["NodeId", "LogEndOffset", "Lag", "Status"],
            ["1", "12", "0", "Leader"],
            ["2", "11", "1", "Follower"],
        ]

    def test_data(self, api: Api) -> None:
        shown = ask(api, "quorum", "describe", "-o", "json").json
        assert shown["term"] == 4 and shown["commit_index"] == 10 and shown["voters"] == [1, 2]
        assert shown["replicas"][1] == {"node_id": 2, "status": "Follower", "log_end_offset": 11, "lag": 1}
        assert ask(api, "quorum", "describe", "-o", "yaml").yaml == shown

    def test_voters_are_added_and_removed_and_a_plan_changes_nothing(self, api: Api, broker: OneNode) -> None:
        stranger = ask(api, "quorum", "add", "3", "--plan")
        assert stranger.stderr == "Error: node 3 is not registered (registered: 1): start it first\n"
        broker.register(3)
        planned = ask(api, "quorum", "add", "3", "--plan")
        assert planned.code == 0 and "would be 1, 2, 3" in planned.text and "0 → 1" in planned.text
        assert broker.voters == (1, 2)
        assert "are now 1, 2, 3" in ask(api, "quorum", "add", "3").text
        shown = ask(api, "quorum", "remove", "2", "-o", "json").json
        assert shown["applied"] and shown["voters"] == [1, 3] and shown["voters_before"] == [1, 2, 3]

    def test_a_refused_change_shows_the_reason(self, api: Api, broker: OneNode) -> None:
        broker.fail["change_voters"] = InvalidRequest("quorum_majority_at_risk", "bring back 3 first")
        result = ask(api, "quorum", "remove", "2")
        assert result.code == 1 and "bring back 3 first" in result.stderr
        assert ask(api, "quorum", "add", "-1").code == 2

    def test_a_failure_is_an_error(self, api: Api, broker: OneNode, monkeypatch: pytest.MonkeyPatch) -> None:
        impatient(monkeypatch)
        broker.fail["quorum_status"] = RetriableError("outcome_unknown", "not now")
        result = ask(api, "quorum", "describe")
        assert result.code == 1 and result.stderr.startswith("Error: ")

    def test_a_node_that_does_not_lead_knows_only_itself(self) -> None:
        status = QuorumInfo(1, 0, 7, 90, 90, 95, [2, 0, 1])
        found = description("c", [0, 1, 2, 3], status)
        assert [(r.node_id, r.status, r.log_end_offset, r.lag) for r in found.replicas] == [
            (0, "Leader", None, None),
            (1, "Follower", 96, None),
            (2, "Follower", None, None),
            (3, "Observer", None, None),
        ]
        assert found.max_follower_lag is None and found.observers == [3]

    def test_a_forgetful_voter_is_shown_with_the_remedy(self) -> None:
        """S9, S10: a voter that no longer takes part must not look like a healthy one."""
        status = QuorumInfo(0, 0, 7, 90, 90, 95, [0, 1, 2], {"0": 95, "1": 95, "2": 95}, [2])
        found = description("c", [0, 1, 2], status)
        assert [r.status for r in found.replicas] == ["Leader", "Follower", "Forgetful"]
        shown = quorum_text(found, False)
        assert "Node 2 lost" in shown and "raftlog quorum remove 2 --plan" in shown
        assert "forgot" not in quorum_text(description("c", [0], QuorumInfo(0, 0, 7, 9, 9, 9, [0])), False)

    def test_without_a_leader_none_is_shown(self) -> None:
        found = description("c", [0], QuorumInfo(0, -1, 7, 90, 90, 95, [0], {"0": 95}))
        assert found.leader is None
        assert [(r.status, r.lag) for r in found.replicas] == [("Follower", None)]


class TestRollCheck:
    def test_a_node_that_may_be_stopped(self, api: Api) -> None:
        result = ask(api, "cluster", "roll-check", "1")
        assert (result.code, result.text) == (0, "node 1 may be stopped\n")
        assert ask(api, "cluster", "roll-check", "1", "-o", "json").json == {"node": 1, "safe": True, "reasons": []}

    def test_a_node_that_must_not(self, api: Api, broker: OneNode) -> None:
        broker.roll_reasons = ["t/0 has no other replica than the one on node 1"]
        result = ask(api, "cluster", "roll-check", "1")
        assert result.code == 10
        assert result.lines == ["node 1 must not be stopped now", f"  {broker.roll_reasons[0]}"]
        began = time.monotonic()
        assert ask(api, "cluster", "roll-check", "1", "--wait", "--timeout", "0.2").code == 10
        assert time.monotonic() - began >= 0.2

    def test_it_waits_until_it_may_be_stopped_over_errors_that_pass(self, api: Api, broker: OneNode) -> None:
        broker.roll_reasons = ["t/0 would have 1 of 2 required in-sync replicas"]
        later = iter([[], broker.roll_reasons])

        async def roll_check(node: BrokerId) -> RollCheck:
            try:
                reasons = next(later)
            except StopIteration:
                return RollCheck(node, True, [])
            if not reasons:
                raise RetriableError("quorum_unavailable", "no quorum")
            return RollCheck(node, False, reasons)

        broker.roll_check = roll_check  # type: ignore[method-assign]
        assert ask(api, "cluster", "roll-check", "1", "--wait").code == 0

    def test_an_error_without_waiting_is_an_error(self, api: Api, broker: OneNode) -> None:
        async def roll_check(node: BrokerId) -> RollCheck:
            raise InvalidRequest("not_found", f"there is no node {node}")

        broker.roll_check = roll_check  # type: ignore[method-assign]
        result = ask(api, "cluster", "roll-check", "7", "--wait")
        assert result.code == 1 and "there is no node 7" in result.stderr
