"""What the quorum decided is taken over in order and in slices, and nobody hears of it too early."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metadata.commands.cluster import CreateTopic, FenceBroker
from metadata.view import ClusterView
from raftlog import slices
from raftlog.broker import wiring
from raftlog.broker.wiring import Broker
from raftlog.model import BrokerId, TopicId
from raftlog.slices import Following
from tests.support.manual import ManualScheduler
from tests.support.metadata_cluster import Cluster

from .test_wiring import OWN, follow, registered

__all__ = ["registered"]

WIDE = TopicId(b"topic-number-002")


class Line:
    """A `Following` whose works write down what they do, and take a millisecond a step."""

    def __init__(self) -> None:
        self.scheduler = ManualScheduler()
        self.fatal: list[BaseException] = []
        self.following = Following(self.scheduler.clock, self.scheduler, self.fatal.append)
        self.done: list[str] = []

    def work(self, name: str, steps: int, *, fails: bool = False) -> Iterator[None]:
        for number in range(steps):
            self.done.append(f"{name}{number}")
            self.scheduler.clock.advance(0.001)
            yield
        if fails:
            raise ValueError(name)


def test_what_is_short_is_done_at_once() -> None:
    line = Line()
    line.following.add(line.work("a", 2))
    assert line.done == ["a0", "a1"]


def test_what_is_long_lets_the_loop_have_a_turn_and_nothing_overtakes() -> None:
    line = Line()
    line.following.add(line.work("a", 12))
    assert len(line.done) == 5
    line.following.add(line.work("b", 1))
    assert len(line.done) == 5, "later works wait for the first"
    assert line.scheduler.run() == 2
    assert line.done == [f"a{number}" for number in range(12)] + ["b0"]


def test_work_added_by_work_comes_after_it() -> None:
    line = Line()

    def outer() -> Iterator[None]:
        line.following.add(line.work("inner", 1))
        line.done.append("outer")
        yield

    line.following.add(outer())
    assert line.done == ["outer", "inner0"]


def test_an_error_is_raised_to_whoever_adds_or_told_where_nobody_would_hear() -> None:
    line = Line()
    with pytest.raises(ValueError, match="now"):
        line.following.add(line.work("now", 1, fails=True))
    line.scheduler.run()
    assert line.fatal == [], "who adds it hears of it"
    line = Line()

    def outer() -> Iterator[None]:
        line.following.add(line.work("behind", 1))
        yield
        raise ValueError("outer")

    with pytest.raises(ValueError, match="outer"):
        line.following.add(outer())
    line.following.add(line.work("later", 1))
    line.scheduler.run()
    assert "behind0" not in line.done and "later0" not in line.done, "nothing is taken over after a hole"
    line = Line()
    line.following.add(line.work("later", 7, fails=True))
    line.following.add(line.work("never", 1))
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


def turns(broker: Broker) -> Iterator[ClusterView]:
    """The view after every turn of the loop."""
    scheduler = broker._following._scheduler
    assert isinstance(scheduler, ManualScheduler)
    while broker._following._works:
        yield broker.view
        timer = scheduler._heap[0]
        assert timer is not None
        callback = scheduler._heap.pop(0)[2].callback
        assert callback is not None
        callback()


def test_a_topic_is_shown_whole_or_not_at_all(
    registered: tuple[Cluster, Broker, list[BaseException]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, broker, fatal = registered
    slow(monkeypatch)
    cluster.do(CreateTopic("wide", WIDE, ((BrokerId(0), BrokerId(1)),) * 20))
    before, reached = broker.view.index, []
    follow(cluster, broker)
    broker.when_view_reaches(cluster.image.index, lambda: reached.append(broker.view.index))
    seen = 0
    for view in turns(broker):
        assert len(view.partitions()) == sum(topic.partition_count for topic in view.topics())
        if view.topic("wide") is None:
            assert view.index == before and reached == []
            seen += 1
    assert seen >= 10 and fatal == []
    assert len(broker.view.partitions_of(WIDE)) == 20
    assert reached == [cluster.image.index]


def test_nobody_hears_of_an_entry_before_partitions_have_it(
    registered: tuple[Cluster, Broker, list[BaseException]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer is never heard before its effect is seen."""
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
    for _ in turns(broker):
        assert heard == [] or told
    assert heard == [told] and told
    assert not broker.view.alive(BrokerId(0))
    assert broker.view.broker(OWN) is not None
