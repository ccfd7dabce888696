"""The child processes of `raftlog bench`, in this process: their counts equal the cluster's content."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest

from raftlog import Producer
from raftlog.cli.bench.child import serve
from raftlog.cli.bench.latency import LatencyWorker
from raftlog.cli.bench.messages import (
    ConsumeJob,
    Failed,
    Go,
    Job,
    LatencyJob,
    Passed,
    ProduceJob,
    Progress,
    Ready,
    Report,
)
from raftlog.cli.bench.runs import Limits, Totals
from raftlog.cli.bench.values import Pool, checksum
from raftlog.records.batch import Codec, encode
from tests.support.client.fake_cluster import FakeCluster, FakeTopic, Fate

PATIENCE_S = 20.0


class Child:
    """A worker that reads and writes lines, without a process around it."""

    def __init__(self, job: Job) -> None:
        self._lines = asyncio.StreamReader()
        self._reports: asyncio.Queue[Report] = asyncio.Queue()
        self.progress: list[Progress] = []
        self._say(job)
        self._life = asyncio.create_task(serve(self._lines, self._reports.put_nowait))

    def _say(self, message: Job | Go) -> None:
        self._lines.feed_data(msgspec.json.encode(message) + b"\n")

    async def answer(self) -> Report:
        async with asyncio.timeout(PATIENCE_S):
            while isinstance(report := await self._reports.get(), Progress):
                self.progress.append(report)
            return report

    async def go(self, go: Go) -> Passed:
        self._say(go)
        answer = await self.answer()
        assert isinstance(answer, Passed), answer
        return answer

    async def say(self, go: Go) -> Report:
        self._say(go)
        return await self.answer()

    async def end(self) -> None:
        self._lines.feed_eof()
        async with asyncio.timeout(PATIENCE_S):
            await self._life


@contextlib.asynccontextmanager
async def child(job: Job) -> AsyncIterator[Child]:
    """A child that is ready."""
    running = Child(job)
    try:
        assert await running.answer() == Ready()
        yield running
    finally:
        await running.end()


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """A worker freezes what it finds, which would hide its own unclosed connections."""
    yield
    gc.unfreeze()
    gc.collect()


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=1) as cluster:
        cluster.create_topic("t", partitions=3)
        yield cluster


def stored(topic: FakeTopic) -> list[bytes]:
    return [value or b"" for partition in topic.partitions for value in partition.values()]


class TestPool:
    def test_values_are_distinct_of_one_size_and_never_sent_twice(self) -> None:
        pool = Pool(25_000, 20)
        before, content = pool.values, bytes(pool.content)
        assert {len(value) for value in before} == {20}
        pool.salt()
        assert len(set(before) | set(pool.values)) == 50_000
        assert b"".join(before) == content and b"".join(pool.values) == bytes(pool.content) != content

    def test_a_checksum_is_independent_of_the_order_but_includes_every_value(self) -> None:
        values = Pool(1000, 16).values
        assert checksum(values[::-1]) == checksum(values) == checksum(values[:300]) + checksum(values[300:])
        assert checksum([*values[1:], values[1]]) != checksum(values)
        assert checksum([b"a", None, b""]) == checksum([b"a", b"", b""])

    @pytest.mark.parametrize(("count", "size"), [(0, 10), (10, 0)])
    def test_invalid_orders(self, count: int, size: int) -> None:
        with pytest.raises(ValueError, match="values of"):
            Pool(count, size)


class TestProducing:
    @pytest.mark.parametrize("send", ["one", "many"])
    async def test_a_pass_equals_the_logs_content(self, cluster: FakeCluster, send: str) -> None:
        job = ProduceJob(cluster.bootstrap, "t", 20_000, 50, send=send, batch_bytes=20_000)  # type: ignore[arg-type]
        async with child(job) as producing:
            first = await producing.go(Go())
            assert (first.records, first.bytes) == (20_000, 1_000_000)
            assert first.ended > first.began
            assert await producing.say(Go(salt=True)) == Ready()
            second = await producing.go(Go(records=7_001))
        values = stored(cluster.topics["t"])
        assert len(values) == len(set(values)) == 27_001
        assert checksum(values) == first.checksum + second.checksum
        # Every record has a latency, and was reported when it was measured.
        assert first.latency.count == 20_000
        assert sum(progress.records for progress in producing.progress) == 27_001
        assert sum(progress.latency.count for progress in producing.progress) == 27_001

    async def test_a_limited_rate_is_kept(self, cluster: FakeCluster) -> None:
        async with child(ProduceJob(cluster.bootstrap, "t", 1000, rate=2000.0)) as producing:
            passed = await producing.go(Go(records=600))
        assert passed.records == 600
        assert passed.ended - passed.began >= 599 / 2000

    async def test_a_time_limit_ends_a_pass_and_counts_the_sent_records(self, cluster: FakeCluster) -> None:
        async with child(ProduceJob(cluster.bootstrap, "t", 100_000, rate=5000.0)) as producing:
            passed = await producing.go(Go(seconds=0.3))
        assert 0 < passed.records < 10_000
        assert passed.records == len(stored(cluster.topics["t"]))
        assert passed.checksum == checksum(stored(cluster.topics["t"]))

    async def test_the_warm_up_is_over_when_the_child_is_ready(self, cluster: FakeCluster) -> None:
        async with child(ProduceJob(cluster.bootstrap, "t", 1000, warm_up=0.05)) as producing:
            warm = len(stored(cluster.topics["t"]))
            assert warm > 0
            await producing.go(Go(records=10))
            assert producing.progress[-1].records == 10
        assert len(stored(cluster.topics["t"])) == warm + 10

    @pytest.mark.parametrize("send", ["one", "many"])
    async def test_a_refused_record_fails_the_pass(self, cluster: FakeCluster, send: str) -> None:
        """S11: records that the cluster did not accept are never counted as sent."""
        node = next(iter(cluster.nodes.values()))
        async with child(ProduceJob(cluster.bootstrap, "t", 1000, send=send)) as producing:  # type: ignore[arg-type]
            node.on_produce = lambda *_: Fate(error="batch_too_large")
            answer = await producing.say(Go())
            assert isinstance(answer, Failed) and answer.code == "batch_too_large"
            assert sum(progress.records for progress in producing.progress) == 0

    async def test_an_unknown_topic_is_reported_before_the_clock_starts(self, cluster: FakeCluster) -> None:
        failing = Child(ConsumeJob(cluster.bootstrap, "nix"))
        answer = await failing.answer()
        assert isinstance(answer, Failed) and answer.code == "unknown_topic"
        await failing.end()

    async def test_a_child_ends_with_its_input_in_the_middle_of_a_pass(self, cluster: FakeCluster) -> None:
        producing = Child(ProduceJob(cluster.bootstrap, "t", 1000, rate=1.0))
        assert await producing.answer() == Ready()
        producing._say(Go())
        await cluster.until(lambda: stored(cluster.topics["t"]))
        await producing.end()


class TestConsuming:
    def fill(self, cluster: FakeCluster, batches: int = 4) -> list[bytes]:
        values = Pool(batches * 300, 30).values
        rows = iter(values)
        for number in range(batches):
            partition = cluster.topics["t"].partitions[number % 2]
            part = list(itertools.islice(rows, 300))
            assert isinstance(partition.append(encode(part, base_timestamp_ms=1, codec=Codec.NONE)), int)
        return values

    @pytest.mark.parametrize("decode", ["lists", "arrow", "each", "none"])
    async def test_it_reads_all_records_repeatedly(self, cluster: FakeCluster, decode: str) -> None:
        self.fill(cluster)
        go = Go(start={0: 0, 1: 0, 2: 0}, end={0: 600, 1: 600, 2: 0})
        async with child(ConsumeJob(cluster.bootstrap, "t", decode)) as consuming:  # type: ignore[arg-type]
            assert [(await consuming.go(go)).records for _ in range(3)] == [1200] * 3
            assert sum(progress.records for progress in consuming.progress) == 3600

    async def test_a_second_reader_finds_the_same_values(self, cluster: FakeCluster) -> None:
        values = self.fill(cluster)
        async with child(ConsumeJob(cluster.bootstrap, "t", checksum=True)) as consuming:
            whole = await consuming.go(Go(start={0: 0, 1: 0}, end={0: 600, 1: 600}))
            part = await consuming.go(Go(start={0: 300, 1: 600}, end={0: 600, 1: 600}))
        assert (whole.records, whole.checksum) == (1200, checksum(values))
        assert (part.records, part.checksum) == (300, checksum(values[600:900]))

    @pytest.mark.parametrize("decode", ["lists", "each"])
    async def test_records_written_meanwhile_do_not_belong_to_the_pass(self, cluster: FakeCluster, decode: str) -> None:
        self.fill(cluster, batches=6)
        async with child(ConsumeJob(cluster.bootstrap, "t", decode)) as consuming:  # type: ignore[arg-type]
            passed = await consuming.go(Go(start={0: 0, 1: 0}, end={0: 300, 1: 900}))
        assert passed.records == 1200

    async def test_it_continues_where_the_last_pass_ended(self, cluster: FakeCluster) -> None:
        self.fill(cluster)
        async with child(ConsumeJob(cluster.bootstrap, "t")) as consuming:
            assert (await consuming.go(Go(records=300))).records == 300
            assert (await consuming.go(Go(records=900))).records == 900

    @pytest.mark.parametrize("decode", ["lists", "each"])
    async def test_a_time_limit_ends_a_pass_without_records(self, cluster: FakeCluster, decode: str) -> None:
        async with child(ConsumeJob(cluster.bootstrap, "t", decode)) as consuming:  # type: ignore[arg-type]
            assert (await consuming.go(Go(seconds=0.05))).records == 0


class TestLatency:
    async def test_each_record_is_measured_twice(self, cluster: FakeCluster) -> None:
        async with child(LatencyJob(cluster.bootstrap, "t", rate=2000.0, value_bytes=40)) as measuring:
            passed = await measuring.go(Go(records=400))
        read, acknowledged = passed.latency, passed.acknowledged
        assert read.count == acknowledged.count == 400
        assert len(set(stored(cluster.topics["t"]))) == 400
        assert passed.ended - passed.began >= 399 / 2000

    async def test_a_stall_is_counted_from_when_records_were_due(self, cluster: FakeCluster) -> None:
        """No coordinated omission: a delay of the broker of 0.3 s shows in a third of a run of 0.9 s."""
        node = next(iter(cluster.nodes.values()))
        held = asyncio.Event()

        def fate(*_: object) -> Fate:
            if not held.is_set():
                asyncio.get_running_loop().call_later(0.3, held.set)
            return Fate(hold=held)

        async with child(LatencyJob(cluster.bootstrap, "t", rate=500.0)) as measuring:
            node.on_produce = fate
            passed = await measuring.go(Go(records=450))
        acknowledged = passed.acknowledged
        assert acknowledged.count == 450
        assert acknowledged.maximum >= 290_000
        assert acknowledged.percentile(80) >= 50_000

    async def test_foreign_records_do_no_harm_and_a_duplicate_is_reported(self, cluster: FakeCluster) -> None:
        """S1: a record that is read twice fails the run."""
        topic = cluster.topics["t"]
        async with child(LatencyJob(cluster.bootstrap, "t", rate=200.0)) as measuring:
            foreign = encode([b"x" * 100, None], base_timestamp_ms=1, codec=Codec.NONE)
            assert isinstance(topic.partitions[0].append(foreign), int)
            assert (await measuring.go(Go(records=20))).latency.count == 20
            doubling = asyncio.create_task(self.double_one(cluster))
            answer = await measuring.say(Go(records=400))
            await doubling
            assert isinstance(answer, Failed) and "S1" in answer.detail

    async def double_one(self, cluster: FakeCluster) -> None:
        partitions = cluster.topics["t"].partitions
        before = [partition.end_offset for partition in partitions]
        await cluster.until(lambda: [partition.end_offset for partition in partitions] != before)
        newest = next(p for p, end in zip(partitions, before, strict=True) if p.end_offset > end)
        again = encode([newest.values()[-1]], base_timestamp_ms=1, codec=Codec.NONE)
        assert isinstance(newest.append(again), int)
        cluster.wake()


class TestLimits:
    def test_records_are_divided_to_the_last_one(self) -> None:
        limits, done = Limits(records=1003), 0
        while not limits.is_over(done, 1.0):
            shares = limits.shares(done, 1.0, clients=3, most=100)
            assert all(share.records is not None and share.records <= 100 for share in shares)
            done += sum(share.records or 0 for share in shares)
        assert done == 1003

    def test_seconds_are_the_remaining_ones(self) -> None:
        assert Limits(seconds=10.0).shares(5, 4.0, 2, None) == [Go(None, 6.0)] * 2
        assert Limits(seconds=10.0).is_over(0, 10.0)

    def test_both_are_whole_passes(self) -> None:
        limits = Limits(1000, 60.0, both=True)
        assert limits.shares(999, 59.0, 2, 500) == [Go(500)] * 2
        assert not limits.is_over(1000, 59.0) and not limits.is_over(999, 61.0) and limits.is_over(1000, 60.0)

    def test_a_run_has_an_end(self) -> None:
        with pytest.raises(ValueError, match="without a limit"):
            Limits()

    def test_the_clock_runs_from_the_first_to_the_last(self) -> None:
        totals = Totals()
        totals.add([Passed(10, 100, 5.0, 7.0), Passed(10, 100, 6.0, 9.0)])
        totals.add([Passed(5, 50, 20.0, 21.0)], ended=21.5)
        assert (totals.records, totals.bytes, totals.passes) == (25, 250, 2)
        assert totals.seconds == pytest.approx(4.0 + 1.5)


class TestBugs:
    async def test_an_unreadable_order_ends_a_child_with_an_error(self, cluster: FakeCluster) -> None:
        lines, reports = asyncio.StreamReader(), asyncio.Queue[Report]()
        lines.feed_data(msgspec.json.encode(ProduceJob(cluster.bootstrap, "t", 10, 50)) + b"\nno order\n")
        with pytest.raises(msgspec.DecodeError):
            async with asyncio.timeout(PATIENCE_S):
                await serve(lines, reports.put_nowait)

    async def test_a_bug_in_a_paced_send_ends_the_pass(
        self, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object, **__: object) -> None:
            raise KeyError("nobody foresaw this one")

        worker = LatencyWorker(LatencyJob(cluster.bootstrap, "t", rate=200.0))
        try:
            await worker.prepare()
            monkeypatch.setattr(Producer, "send", broken)
            with pytest.raises(KeyError, match="nobody foresaw"):
                async with asyncio.timeout(PATIENCE_S):
                    await worker.run(Go(records=20))
        finally:
            await worker.close()
