"""The quorum's decisions are applied in order and in slices, and no caller is answered too early."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metadata.commands.cluster import CreateTopic, FenceBroker
from metadata.view import ClusterView
from raftlog import slices
from raftlog.broker import wiring
from raftlog.broker.wiring import Broker
from raftlog.model import BrokerId, TopicId
from raftlog.slices import WorkQueue
from tests.support.metadata.cluster import Cluster
from tests.support.partitions.manual import ManualScheduler

from .test_wiring import OWN, follow, registered, scheduler

__all__ = ["registered", "scheduler"]

WIDE = TopicId(b"topic-number-002")


class Line:
    """A `WorkQueue` whose works record their steps, and take a millisecond per step."""

    def __init__(self) -> None:
        self.scheduler = ManualScheduler()
        self.fatal: list[BaseException] = []
        self.following = WorkQueue(self.scheduler, self.scheduler.clock, self.fatal.append)
        self.done: list[str] = []

    def add(self, name: str, steps: int, *, fails: bool = False) -> None:
        self.following.add(lambda: self.work(name, steps, fails=fails))

    def work(self, name: str, steps: int, *, fails: bool = False) -> Iterator[None]:
        for number in range(steps):
            self.done.append(f"{name}{number}")
            self.scheduler.clock.advance(0.001)
            yield
        if fails:
            raise ValueError(name)


def test_short_work_is_done_at_once() -> None:
    line = Line()
    line.add("a", 2)
    assert line.done == ["a0", "a1"]


def test_long_work_gives_the_loop_a_turn_and_nothing_overtakes_it() -> None:
    line = Line()
    line.add("a", 12)
    assert len(line.done) == 5
    line.add("b", 1)
    assert len(line.done) == 5, "later works wait for the first"
    assert line.scheduler.run() == 2
    assert line.done == [f"a{number}" for number in range(12)] + ["b0"]


def test_work_added_by_work_comes_after_it() -> None:
    line = Line()

    def outer() -> Iterator[None]:
        line.add("inner", 1)
        line.done.append("outer")
        yield

    line.following.add(outer)
    assert line.done == ["outer", "inner0"]


def test_an_error_is_raised_to_the_caller_or_reported_if_there_is_none() -> None:
    line = Line()
    with pytest.raises(ValueError, match="now"):
        line.add("now", 1, fails=True)
    line.scheduler.run()
    assert line.fatal == [], "who adds it hears of it"
    line = Line()

    def outer() -> Iterator[None]:
        line.add("behind", 1)
        yield
        raise ValueError("outer")

    with pytest.raises(ValueError, match="outer"):
        line.following.add(outer)
    line.add("later", 1)
    line.scheduler.run()
    assert "behind0" not in line.done and "later0" not in line.done, "nothing is taken over after a hole"
    line = Line()
    line.add("later", 7, fails=True)
    line.add("never", 1)
    assert line.fatal == []
    with pytest.raises(ValueError, match="later"):
        line.scheduler.run()
    assert [str(error) for error in line.fatal] == ["later"]
    line.scheduler.run()
    assert "never0" not in line.done, "nothing is taken over after a hole"


def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is a turn of its own, and there are many."""
    monkeypatch.setattr(slices, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(wiring, "EVENTS_PER_STEP", 2)


def turns(broker: Broker, scheduler: ManualScheduler) -> Iterator[ClusterView]:
    """The view after every turn of the loop."""
    yield broker.view
    while scheduler.run_one():
        yield broker.view


def test_a_topic_is_shown_completely_or_not_at_all(
    registered: tuple[Cluster, Broker, list[BaseException]],
    scheduler: ManualScheduler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, broker, fatal = registered
    slow(monkeypatch)
    cluster.do(CreateTopic("wide", WIDE, ((BrokerId(0), BrokerId(1)),) * 20))
    before, reached = broker.view.index, []
    follow(cluster, broker)
    broker.when_view_reaches(cluster.image.index, lambda: reached.append(broker.view.index))
    seen = 0
    for view in turns(broker, scheduler):
        assert len(view.partitions()) == sum(topic.partition_count for topic in view.topics())
        if view.topic("wide") is None:
            assert view.index == before and reached == []
            seen += 1
    assert seen >= 10 and fatal == []
    assert len(broker.view.partitions_of(WIDE)) == 20
    assert reached == [cluster.image.index]


def test_no_caller_is_answered_before_partitions_have_the_entry(
    registered: tuple[Cluster, Broker, list[BaseException]],
    scheduler: ManualScheduler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer never arrives before its effect is visible."""
    cluster, broker, _ = registered
    slow(monkeypatch)
    told: list[int] = []
    take = broker.manager.follow

    def follow_slowly(changes: object) -> Iterator[None]:
        yield
        yield
        yield from take(changes)  # type: ignore[arg-type]
        told.append(broker.view.index)

    monkeypatch.setattr(broker.manager, "follow", follow_slowly)
    cluster.do(FenceBroker(BrokerId(0), cluster.incarnation(0)))
    follow(cluster, broker)
    heard: list[list[int]] = []
    broker.when_view_reaches(cluster.image.index, lambda: heard.append(list(told)))
    for _ in turns(broker, scheduler):
        assert heard == [] or told
    assert heard == [told] and told
    assert not broker.view.alive(BrokerId(0))
    assert broker.view.broker(OWN) is not None
