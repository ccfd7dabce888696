"""The cluster's time: the clocks that the controller believes, the steps that the image accepts, and
its use by a node.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from metadata.commands.cluster import MAX_STEP_MS, STAMP_LAG_MS, TIME_FEATURE_LEVEL, AdvanceTime, SetFeatureLevel
from metadata.commands.envelope import Command
from metadata.commands.results import Done
from metadata.controller.time_keeper import PATIENCE_SECONDS, STEP_SECONDS, TOLERANCE_MS, TimeKeeper, agreed_offset
from metadata.snapshot.encoder import encode_snapshot
from raftlog.model import BrokerId, ClusterTime
from raftlog.system.cluster_clock import EXTRAPOLATED_SECONDS, ClusterClock
from raftlog.version import FEATURE_LEVEL
from tests.support.metadata.at_once import decode_snapshot
from tests.support.metadata.cluster import Cluster
from tests.support.partitions.manual import ManualClock

TRUE_MS = 1_700_000_000_000
DAY_MS = 86_400_000


class World:
    """Voters with a wall clock each, and a keeper whose proposals are decided at once. `truth` is in seconds."""

    def __init__(self, wrong_ms: Mapping[int, int], *, feature_level: int = FEATURE_LEVEL) -> None:
        self.wrong_ms = dict(wrong_ms)
        self.cluster = Cluster(len(wrong_ms), feature_level=feature_level)
        self.cluster.do(SetFeatureLevel(feature_level))
        self.voters = [BrokerId(number) for number in wrong_ms]
        self.silent: set[int] = set()
        self.now = 50.0
        self.known_at = self.now
        self.keeper = TimeKeeper(self.cluster.term)

    @property
    def true_ms(self) -> int:
        return TRUE_MS + int(self.now * 1000)

    @property
    def time(self) -> ClusterTime:
        return self.cluster.image.time

    @property
    def error_ms(self) -> int:
        """The error of the cluster's time, positive if it is ahead."""
        return self.time.now_ms - self.true_ms

    def elect(self) -> None:
        self.cluster.term += 1
        self.keeper = TimeKeeper(self.cluster.term)

    def hear(self) -> None:
        for voter in self.voters:
            if voter not in self.silent:
                self.keeper.heard(voter, self.true_ms + self.wrong_ms[voter], self.now)

    def turn(self) -> Command | None:
        command = self.keeper.decide(self.now, self.cluster.image, self.voters, self.known_at)
        if command is not None:
            assert isinstance(self.cluster.apply(command, term=self.cluster.term), Done)
            self.known_at = self.now
            self.keeper.settled(command)
        return command

    def run(self, seconds: float, *, every: float = 1.0) -> None:
        until = self.now + seconds
        while self.now < until:
            before = self.time.now_ms
            self.hear()
            self.turn()
            assert self.time.now_ms >= before
            self.now += every


def test_a_majority_agrees_or_none_does() -> None:
    assert agreed_offset([0.0, 10.0, 9e9], 3) == 0.0
    assert agreed_offset([-9e9, 0.0, 10.0], 3) == 0.0
    assert agreed_offset([0.0, TOLERANCE_MS + 1.0], 3) is None
    assert agreed_offset([5.0], 3) is None, "one of three is no majority"
    assert agreed_offset([5.0], 1) == 5.0
    assert agreed_offset([0.0, 1.0, 2.0, 9e9, -9e9], 5) == 1.0, "the middle of those who agree"
    assert agreed_offset([0.0, 50_000.0, 100_000.0], 3) == 0.0, "of two majorities the earlier"
    assert agreed_offset([], 0) is None


def test_below_its_feature_level_the_cluster_has_no_time() -> None:
    """Some node may not know the command; an operator decides when all do."""
    world = World({0: 0, 1: 0, 2: 0}, feature_level=TIME_FEATURE_LEVEL - 1)
    world.hear()
    assert world.turn() is None and not world.time


@pytest.mark.parametrize("wrong", [-30 * DAY_MS, -8 * DAY_MS, 8 * DAY_MS, 3650 * DAY_MS])
@pytest.mark.parametrize("whose", [0, 1, 2])
def test_one_wrong_clock_of_three_changes_nothing_at_a_start_or_for_a_week(wrong: int, whose: int) -> None:
    world = World({0: 0, 1: 200, 2: -300} | {whose: wrong})
    world.run(600.0)
    assert abs(world.error_ms) < 15_000
    world.elect()
    world.run(600.0)
    assert abs(world.error_ms) < 15_000
    world.run(7 * 86_400.0, every=600.0)
    assert -2 * 600_000 < world.error_ms < 15_000


def test_a_clock_that_leaps_is_outvoted() -> None:
    world = World({0: 0, 1: 0, 2: 0})
    world.run(60.0)
    for leap in (8 * DAY_MS, -8 * DAY_MS, 400_000, 0):
        world.wrong_ms[0] = leap
        world.run(300.0)
        assert abs(world.error_ms) < 15_000


def test_if_most_clocks_leap_together_they_are_followed_after_an_hour_and_then_in_steps() -> None:
    world = World({0: 0, 1: 0, 2: 0})
    world.run(60.0)
    world.wrong_ms = dict.fromkeys(world.wrong_ms, DAY_MS)
    world.run(PATIENCE_SECONDS - 60.0)
    assert abs(world.error_ms) < 15_000, "time for a person to look"
    world.wrong_ms = dict.fromkeys(world.wrong_ms, 0)
    world.run(120.0)
    world.wrong_ms = dict.fromkeys(world.wrong_ms, DAY_MS)
    world.run(PATIENCE_SECONDS - 60.0)
    assert abs(world.error_ms) < 15_000, "another leap begins the hour again"
    world.run(90.0)
    assert 0 < world.error_ms <= 10 * MAX_STEP_MS
    world.run(3_600.0)
    assert abs(world.error_ms - DAY_MS) < 15_000


def test_a_timestamp_from_before_a_leap_is_no_older_than_the_leap_s8() -> None:
    world = World({0: 0, 1: 0, 2: 0})
    world.run(60.0)
    stamp = world.time.stamp_ms
    world.now += 30 * 86_400.0  # The whole cluster was off.
    world.elect()
    world.known_at = world.now
    world.run(PATIENCE_SECONDS - 60.0)
    assert abs(world.time.stamp_ms - world.true_ms) < 15_000, "what is stamped meanwhile has the time agreed on"
    assert world.time.since_ms(stamp) == stamp
    world.run(13 * 3_600.0, every=5.0)
    assert abs(world.error_ms) < 15_000
    assert world.time.since_ms(stamp) > world.true_ms - 15 * 3_600_000


def test_a_time_that_is_ahead_stands_still_until_the_clocks_have_caught_up() -> None:
    world = World({0: 600_000, 1: 600_000, 2: 600_000})
    world.run(60.0)
    stood = world.time.now_ms
    world.wrong_ms = dict.fromkeys(world.wrong_ms, 0)
    world.run(500.0)
    assert stood <= world.time.now_ms <= stood + 15_000
    world.run(200.0)
    assert abs(world.error_ms) < 15_000


def test_without_agreement_the_monotonic_clock_counts() -> None:
    world = World({0: 0, 1: 0, 2: 0})
    world.run(60.0)
    world.wrong_ms = {0: DAY_MS, 1: -DAY_MS, 2: 3 * DAY_MS}
    world.run(1_000.0)
    assert abs(world.error_ms) < 15_000
    assert world.time.agreed_ms == 0
    never = World({0: DAY_MS, 1: -DAY_MS, 2: 3 * DAY_MS})
    never.run(1_000.0)
    assert not never.time, "nothing expires in a cluster that never agreed"


def test_a_single_voter_is_believed_once_and_its_sleep_counts_for_nothing() -> None:
    world = World({0: 5_000})
    world.run(60.0)
    assert abs(world.error_ms - 5_000) < 15_000
    before = world.time.now_ms
    world.now += 30 * 86_400.0
    world.elect()
    world.known_at = world.now  # It read its journal just now.
    world.run(600.0)
    assert before + 500_000 < world.time.now_ms <= before + 601_000
    world.wrong_ms[0] = -60 * DAY_MS
    stood = world.time.now_ms
    world.run(600.0)
    assert world.time.now_ms == stood, "not past its wall clock"


def test_an_old_reading_does_not_count() -> None:
    world = World({0: 0, 1: 0, 2: 0})
    world.run(60.0)
    world.silent = {1, 2}
    world.run(60.0)
    assert world.time.agreed_ms == 0
    assert abs(world.error_ms) < 15_000


def test_an_undecided_proposal_is_the_only_one() -> None:
    world = World({0: 0, 1: 0, 2: 0})
    world.run(30.0)
    world.now += STEP_SECONDS
    world.hear()
    command = world.keeper.decide(world.now, world.cluster.image, world.voters, world.known_at)
    assert command is not None
    world.now += STEP_SECONDS
    world.hear()
    assert world.keeper.decide(world.now, world.cluster.image, world.voters, world.known_at) is None
    world.keeper.settled(command)
    assert world.keeper.decide(world.now, world.cluster.image, world.voters, world.known_at) is not None


# --- The image -------------------------------------------------------------------------------------------------------


def told(now_ms: int = TRUE_MS) -> Cluster:
    cluster = Cluster(3, feature_level=FEATURE_LEVEL)
    cluster.tell_time(now_ms)
    return cluster


@pytest.mark.parametrize(
    ("step", "code"),
    [
        ((2, TRUE_MS, TRUE_MS + 1), "not_controller"),
        ((1, TRUE_MS - 1, TRUE_MS + 1), "invalid_request"),
        ((1, 0, TRUE_MS + 1), "invalid_request"),
        ((1, TRUE_MS, TRUE_MS - 1), "invalid_request"),
        ((1, TRUE_MS, TRUE_MS + MAX_STEP_MS + 1), "invalid_request"),
    ],
)
def test_the_image_accepts_only_the_next_step(step: tuple[int, int, int], code: str) -> None:
    cluster = told()
    assert cluster.refusal(AdvanceTime(*step, 0)) == code
    assert cluster.image.time.now_ms == TRUE_MS


def test_below_its_feature_level_there_is_no_time() -> None:
    cluster = Cluster(3, feature_level=FEATURE_LEVEL)
    assert cluster.refusal(AdvanceTime(1, 0, TRUE_MS, 0)) == "unsupported_version"
    assert encode_snapshot(cluster.image)[4:8] == (4).to_bytes(4, "big"), "nodes that know no time can read it"


def test_a_step_moves_the_time_and_a_leap_its_beginning() -> None:
    cluster = told()
    assert cluster.image.time == cluster.view.time == ClusterTime(TRUE_MS, TRUE_MS, TRUE_MS)
    cluster.do(AdvanceTime(1, TRUE_MS, TRUE_MS + STAMP_LAG_MS, 0))
    assert cluster.image.time == ClusterTime(TRUE_MS + STAMP_LAG_MS, TRUE_MS, 0)
    leapt = TRUE_MS + 3 * STAMP_LAG_MS
    cluster.do(AdvanceTime(1, TRUE_MS + STAMP_LAG_MS, leapt, 7))
    assert cluster.view.time == ClusterTime(leapt, leapt, 7)
    again = decode_snapshot(encode_snapshot(cluster.image))
    assert again.time == cluster.image.time


# --- One node --------------------------------------------------------------------------------------------------------


class Node:
    """A node whose quorum reports the time every ten seconds."""

    def __init__(self, wrong_ms: int) -> None:
        self.clock = ManualClock(wall_ms=TRUE_MS + wrong_ms)
        self.true_ms = TRUE_MS
        self.time = ClusterClock(self.clock)

    def run(self, seconds: int, *, agreed: bool = True, lag_ms: int = 0) -> None:
        for second in range(seconds):
            if second % 10 == 0:
                now_ms = self.true_ms - lag_ms
                self.time.learn(ClusterTime(now_ms, 1, self.true_ms if agreed else 0))
            self.pass_by(1)

    def pass_by(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.true_ms += 1000 * seconds


@pytest.mark.parametrize("wrong_ms", [-8 * DAY_MS, -61_000, -30_000, 0, 30_000, 8 * DAY_MS])
def test_a_node_with_any_clock_knows_the_time(wrong_ms: int) -> None:
    node = Node(wrong_ms)
    node.run(25)
    assert node.time.expiry_ms() == node.true_ms
    assert abs(node.time.stamp_ms() - node.true_ms) <= 60_000
    node.clock.jump_wall(9 * DAY_MS)
    assert node.time.expiry_ms() == node.true_ms and node.time.stamp_ms() == node.true_ms
    assert "ahead of the cluster's time" in node.time.problem()


@pytest.mark.parametrize(("wrong_ms", "says"), [(-61_000, "behind"), (59_000, ""), (61_000, "ahead of")])
def test_a_wrong_clock_is_a_problem_that_names_its_remedy(wrong_ms: int, says: str) -> None:
    node = Node(wrong_ms)
    node.run(25)
    assert (f"61 s {says} the cluster's time" in node.time.problem() and "NTP" in node.time.problem()) == bool(says)


def test_a_node_without_news_of_the_time_expires_nothing_after_a_while() -> None:
    node = Node(0)
    assert node.time.expiry_ms() is None and node.time.stamp_ms() == TRUE_MS
    assert "no time yet" in node.time.doubt()
    node.run(10)
    node.pass_by(int(EXTRAPOLATED_SECONDS) - 10)
    assert node.time.expiry_ms() == node.true_ms and node.time.doubt() == ""
    node.pass_by(1)
    assert node.time.expiry_ms() is None
    assert "has not announced the time for 61 s" in node.time.doubt()
    assert node.time.stamp_ms() == node.true_ms


def test_a_stamp_is_never_before_the_time_by_which_it_expires() -> None:
    """A single voter's clock that was set back, and entries that are read again after a start: their times are old."""
    node = Node(0)
    node.run(30, agreed=False)
    node.clock.jump_wall(-8 * DAY_MS)
    assert node.time.stamp_ms() == node.true_ms
    again = Node(0)
    again.time.learn(ClusterTime(TRUE_MS - 9 * DAY_MS, 1, TRUE_MS - 9 * DAY_MS))
    again.time.learn(ClusterTime(TRUE_MS - 8 * DAY_MS, 1, TRUE_MS - 8 * DAY_MS))
    assert again.time.stamp_ms() == TRUE_MS, "that is of no agreement of now"
    again.run(25, lag_ms=8 * DAY_MS)
    assert again.time.stamp_ms() == again.true_ms and again.time.problem() == ""
    assert again.time.expiry_ms() == again.true_ms - 8 * DAY_MS
