"""The part *cluster* of `benchmarks/scale.py`: voters with a core each in virtual time, and brokers that are stubs.

Every row describes one experiment. `share` is the load of the core of the quorum's leader (or of a voter that follows),
`out_mb_s` the traffic that the leader sent, `log_kb_s` the growth of the metadata log. Latencies are from a broker's
proposal to the arrival of its answer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from measuring import resident_mb
from scale_commands import commit_of, group_commits, lift_limits, topics
from scale_world import Stub, Voter, World, settle_memory

from metadata.commands.envelope import Command
from metadata.commands.groups import ChangeGroups
from metadata.quorum.limits import QuorumLimits
from metadata.quorum.port import Fate, Outcome
from metadata.records.events import MetadataEvent
from metadata.view import ClusterView, TopicChanged
from raftlog.model import BrokerId

IDLE_BROKERS = (0, 15, 45, 95, 195)
LOADS = ((50, 1), (100, 1), (200, 1), (400, 1), (800, 1), (1600, 1), (20, 25), (40, 25), (80, 25), (160, 25))
"""Commands per second, and the number of group commits in each of them."""
STOP_SHARE = 0.97
SNAPSHOT_ENTRIES = 2_000
"""Small, so that the loads include snapshots and a cold broker needs one."""


def say(what: str, **found: Any) -> None:
    print(json.dumps({"what": what, **found}), flush=True)


class Study:
    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked = asked
        lift_limits(asked["partitions"])
        self.world = World(asked["voters"], QuorumLimits(snapshot_entries=SNAPSHOT_ENTRIES))
        self.offset = 1

    def run(self) -> None:
        self.idle()
        self.make_topics()
        self.make_groups()
        settle_memory()
        self.loads()
        settle_memory()
        self.idle_again()
        self.cold_broker()
        self.broker_dies()
        self.controller_dies()
        say("memory", voters=self.asked["voters"], resident_mb=resident_mb(os.getpid()))

    # --- Idle brokers ---

    def idle(self) -> None:
        """Brokers that only send heartbeats."""
        most = self.asked["brokers"] - self.asked["voters"]
        for count in [*(n for n in IDLE_BROKERS if n < most), most]:
            self.world.add_stubs(count - len(self.world.stubs))
            self.world.run(2.0)
            say("idle", brokers=len(self.world.nodes), **self.costs(self.asked["seconds"]))

    def idle_again(self) -> None:
        say("idle with everything", brokers=len(self.world.nodes), **self.costs(self.asked["seconds"]))

    def costs(self, seconds: float) -> dict[str, float]:
        """Measure `seconds` of virtual time."""
        world, leader = self.world, self.world.the_leader()
        others = [voter for voter in world.voters if voter is not leader and voter.node is not None]
        for voter in (leader, *others):
            voter.forget_costs()
        first, journal = leader.image.index, leader.node.engine.journal.size_bytes if leader.node else 0  # type: ignore[attr-defined]
        world.run(seconds)
        grown = leader.node.engine.journal.size_bytes - journal if leader.node else 0  # type: ignore[attr-defined]
        return {
            "share": leader.busy_seconds / seconds,
            "follower_share": max(voter.busy_seconds for voter in others) / seconds,
            "out_mb_s": leader.sent_bytes / seconds / 1e6,
            "out_messages_s": leader.sent_messages / seconds,
            "entries_s": (leader.image.index - first) / seconds,
            "log_kb_s": max(0.0, grown / seconds / 1e3),
            "longest_turn_ms": 1000 * max(voter.longest_turn for voter in (leader, *others)),
        }

    def make_topics(self) -> None:
        began, turns = self.world.now, 0.0
        for command in topics(self.asked["partitions"], self.asked["brokers"]):
            self.propose(command)
        turns = max(voter.longest_turn for voter in self.world.voters)
        say(
            "topics", partitions=self.asked["partitions"], seconds=self.world.now - began,
            longest_turn_ms=1000 * turns,
        )  # fmt: skip

    def make_groups(self) -> None:
        began = self.world.now
        for command in group_commits(self.asked["groups"], self.asked["partitions"], 1, 25):
            self.propose(command)
        say("groups", groups=self.asked["groups"], seconds=self.world.now - began)

    def propose(self, command: Command) -> None:
        done: list[Outcome] = []
        self.world.the_leader().propose(command, done.append)
        assert self.world.run(120.0, lambda: bool(done)), command
        assert done[0].fate is Fate.APPLIED and "Refused" not in str(done[0].result), done

    # --- Loads ---

    def loads(self) -> None:
        over: set[int] = set()
        for rate, commits in LOADS:
            if commits in over:
                continue
            row = self.load(rate, commits)
            if row["share"] >= STOP_SHARE or row["answered"] < 0.95:
                over.add(commits)

    def load(self, rate: int, commits: int) -> dict[str, Any]:
        world, seconds = self.world, self.asked["seconds"]
        latencies: list[float] = []
        asked = [0]
        end = world.now + 1.0 + seconds
        self.offset += 1

        def propose(stub: Stub, number: int, measured: bool) -> None:
            groups = range(number * commits, number * commits + commits)
            command = ChangeGroups(
                tuple(commit_of(g % self.asked["groups"], self.asked["partitions"], self.offset) for g in groups)
            )
            asked[0] += measured
            stub.propose(command, lambda took, answer: latencies.append(took) if measured else None)

        def at_a_rate(number: int) -> None:
            if world.now < end:
                stub = world.stubs[number % len(world.stubs)]
                propose(stub, number, world.now >= end - seconds)
                world.at(world.now + 1 / rate, lambda: at_a_rate(number + 1))

        at_a_rate(0)
        world.run(1.0)
        row = self.costs(seconds)
        answered = len(latencies) / max(1, asked[0])
        world.run(20.0, lambda: len(latencies) == asked[0])
        latencies.sort()
        row = {
            "commands_s": rate, "commits_a_command": commits, "commits_s": rate * commits, "answered": answered,
            "p50_ms": 1000 * part(latencies, 0.5), "p99_ms": 1000 * part(latencies, 0.99), **row,
        }  # fmt: skip
        say("load", **row)
        world.run(1.0)
        return row

    # --- Failures ---

    def cold_broker(self) -> None:
        """Start a broker with an empty log and without a snapshot. Its view has a core of its own, too."""
        world, leader = self.world, self.world.the_leader()
        voters = leader.identity.voters
        cold = Voter(world, 10_000, voters)
        brought: list[tuple[int, Sequence[MetadataEvent]]] = []
        cold.on_events = lambda index, events: brought.append((index, events))
        target, began, bytes_before = leader.image.index, world.now, leader.sent_bytes
        cold.start()
        assert world.run(120.0, lambda: cold.node is not None and cold.image.index >= target)
        view, spent, longest = ClusterView(), 0.0, 0.0
        for index, events in brought:
            late = [event for event in events if isinstance(event, TopicChanged)]
            others = [event for event in events if not isinstance(event, TopicChanged)]
            for start in range(0, len(others) + 1, 128):
                started = time.thread_time()
                view.on_events(view.index, others[start : start + 128])
                took = time.thread_time() - started
                spent, longest = spent + took, max(longest, took)
            view.on_events(index, late)
        say(
            "cold broker", seconds=world.now - began, own_core_s=cold.busy_seconds, view_core_s=spent,
            view_step_ms=1000 * longest, longest_turn_ms=1000 * cold.longest_turn,
            sent_mb=(leader.sent_bytes - bytes_before) / 1e6, partitions=len(view.partitions()),
        )  # fmt: skip
        cold.kill()
        world.run(2.0)

    def broker_dies(self) -> None:
        world, stub = self.world, self.world.stubs[len(self.world.stubs) // 2]
        image = world.the_leader().image
        led, replicas = len(image.led_by(stub.number)), len(image.replicas_of(stub.number))
        stub.stop()
        say("broker dies", led=led, replicas=replicas, **self.until_led(stub.number, world.now))

    def controller_dies(self) -> None:
        world, leader = self.world, self.world.the_leader()
        led, replicas = len(leader.image.led_by(leader.number)), len(leader.image.replicas_of(leader.number))
        began = world.now
        leader.kill()
        assert world.run(30.0, lambda: world.leader is not None)
        elected = world.now - began
        say(
            "controller dies", led=led, replicas=replicas, quorum_led_s=elected,
            **self.until_led(leader.number, began),
        )  # fmt: skip

    def until_led(self, broker: BrokerId, began: float) -> dict[str, float]:
        """Wait until all voters see the broker fenced without leaderships, and its former partitions with another
        leader."""
        world = self.world
        running = [voter for voter in world.voters if voter.node is not None]
        for voter in running:
            voter.forget_costs()

        def fenced() -> bool:
            return all(v.image.brokers[broker].fenced for v in running)

        def led() -> bool:
            return all(not v.image.leaderless and not v.image.led_by(broker) for v in running)

        assert world.run(60.0, fenced), "it is not fenced after a minute"
        fenced_after = world.now - began
        assert world.run(60.0, led), "partitions have no leader after a minute"
        return {
            "fenced_s": fenced_after, "all_led_s": world.now - began,
            "longest_turn_ms": 1000 * max(voter.longest_turn for voter in running),
        }  # fmt: skip


def part(values: list[float], share: float) -> float:
    """Return a percentile of sorted values."""
    return values[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


if __name__ == "__main__":
    Study(json.loads(sys.argv[1])).run()
