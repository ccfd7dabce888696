"""`raftlog produce` with a cluster in memory: the sent records, the output, and its end."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.cli.commands import produce as produce_module
from raftlog.cli.records.tally import Tally
from raftlog.cli.terminal import progress
from raftlog.client import DeliveryFuture
from raftlog.client.producing.delivery import Delivery
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.partitioner import partition_for_key
from raftlog.records.batch import Codec, RecordBatch, parse_header
from tests.support.cli_runner import Background, Result, run
from tests.support.client.fake_cluster import FakeCluster, FakeTopic, Fate

numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with Background(FakeCluster(nodes=1)) as background:
        yield background.cluster


@pytest.fixture
def topic(cluster: FakeCluster) -> Iterator[FakeTopic]:
    """A new topic with three partitions."""
    yield cluster.create_topic(f"t{next(numbers)}", partitions=3)
    cluster.nodes[1].on_produce = lambda _: Fate()


def produce(cluster: FakeCluster, topic: FakeTopic, *arguments: str, stdin: bytes = b"") -> Result:
    return run("produce", topic.name, *arguments, bootstrap=cluster.bootstrap, stdin=stdin)


def values(topic: FakeTopic) -> list[bytes | None]:
    return [value for partition in topic.partitions for value in partition.values()]


def records(topic: FakeTopic, partition: int) -> list[tuple[bytes | None, bytes | None, int, tuple[object, ...]]]:
    return [
        (record.key, record.value, record.timestamp_ms, record.headers)
        for batch in topic.partitions[partition].batches
        for record in RecordBatch(batch).records()
    ]


def test_lines_of_standard_input_are_values(cluster: FakeCluster, topic: FakeTopic) -> None:
    result = produce(cluster, topic, "--partition", "1", stdin=b"one\ntwo\nthree")
    assert result.code == 0
    assert topic.partitions[1].values() == [b"one", b"two", b"three"]
    assert result.stdout == b""
    assert result.stderr.startswith("3 records sent, ") and "MB/s" in result.stderr
    assert result.stderr.count("\n") == 1, "nothing else, and no progress bar where nobody looks"


def test_keys_go_to_the_partitions_that_kafka_gives_them(cluster: FakeCluster, topic: FakeTopic) -> None:
    keys = [b"k%d" % number for number in range(30)]
    text = b"".join(b"%s\tvalue of %s\n" % (key, key) for key in keys)
    assert produce(cluster, topic, "--key-separator", "\\t", stdin=text).code == 0
    for number, partition in enumerate(topic.partitions):
        assert partition.keys() == [key for key in keys if partition_for_key(key, 3) == number]


def test_files_are_sent_in_order_and_their_lines_are_not_joined(
    cluster: FakeCluster, topic: FakeTopic, tmp_path: Path
) -> None:
    for name, content in (("a", b"1\n2"), ("b", b"3\n"), ("c", b"")):
        (tmp_path / name).write_bytes(content)
    files = [str(tmp_path / name) for name in "abc"]
    assert produce(cluster, topic, files[0], "-", *files[1:], "--partition", "0", stdin=b"typed").code == 0
    assert topic.partitions[0].values() == [b"1", b"2", b"typed", b"3"]


def test_large_input_keeps_its_order(
    cluster: FakeCluster, topic: FakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(produce_module, "PIECE_BYTES", 10_000)
    lines = [b"line %d" % number for number in range(20_000)]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    result = produce(cluster, topic, str(tmp_path / "lines"), "--partition", "2", "--batch-bytes", "4096")
    assert result.stderr.startswith("20000 records sent")
    assert topic.partitions[2].values() == lines
    assert len(topic.partitions[2].batches) > 10


def test_records_may_have_partitions_times_and_headers(cluster: FakeCluster, topic: FakeTopic) -> None:
    text = (
        b'{"value": "a", "partition": 1, "timestamp": 1000, "headers": {"h": "x"}}\n'
        b'{"value": "b", "partition": 1, "timestamp": 2000}\n'
        b'{"value": null, "key": "k", "partition": 0}\n'
    )
    result = produce(cluster, topic, "--format", "ndjson", stdin=text)
    assert result.code == 0 and result.stderr.startswith("3 records sent")
    assert records(topic, 1) == [(None, b"a", 1000, (("h", b"x"),)), (None, b"b", 2000, ())]
    ((key, value, timestamp, _),) = records(topic, 0)
    assert (key, value) == (b"k", None) and timestamp > 10**12


def test_records_that_differ_only_in_partition_are_sent_as_columns(cluster: FakeCluster, topic: FakeTopic) -> None:
    lines = [b'{"value": "%d", "partition": %d, "timestamp": %d}' % (i, i % 3, i) for i in range(3000)]
    result = produce(cluster, topic, "--format", "json", stdin=b"[" + b",\n".join(lines) + b"]")
    assert result.stderr.startswith("3000 records sent")
    for number in range(3):
        expected = [(None, b"%d" % i, i, ()) for i in range(number, 3000, 3)]
        assert records(topic, number) == expected


def test_the_partition_option_takes_precedence_over_records(cluster: FakeCluster, topic: FakeTopic) -> None:
    text = b'{"value": "a", "partition": 1}\n{"value": "b", "partition": 2, "headers": {"h": "x"}}\n'
    assert produce(cluster, topic, "--format", "ndjson", "--partition", "0", stdin=text).code == 0
    assert topic.partitions[0].values() == [b"a", b"b"]


@pytest.mark.parametrize("acks", ["all", "1", "0"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_acks_and_compression_reach_the_producer(
    cluster: FakeCluster, topic: FakeTopic, acks: str, compression: str
) -> None:
    seen = []
    cluster.nodes[1].on_produce = lambda request: seen.append(request.acks) or Fate()  # type: ignore[func-returns-value]
    result = produce(
        cluster, topic, "--acks", acks, "--compression", compression, "--partition", "0", stdin=b"abc\n" * 5000
    )
    assert result.code == 0 and result.stderr.startswith("5000 records sent")
    assert set(seen) == {-1 if acks == "all" else int(acks)}
    assert {parse_header(batch).codec for batch in topic.partitions[0].batches} == {Codec[compression.upper()]}


class TestFailure:
    def test_a_fault_in_the_input_keeps_earlier_records_and_names_the_line(
        self, cluster: FakeCluster, topic: FakeTopic, tmp_path: Path
    ) -> None:
        path = tmp_path / "records"
        path.write_bytes(b'{"value": "a"}\n{"value": "b"}\n{]\n{"value": "c"}\n')
        result = produce(cluster, topic, str(path), "--format", "ndjson")
        assert result.code == 1
        assert sorted(map(bytes, filter(None, values(topic)))) == [b"a", b"b"]
        summary, error = result.stderr.splitlines()
        assert summary.startswith("2 records sent")
        assert error.startswith(f"Error: {path}: line 3: ")

    def test_refused_records_are_counted(self, cluster: FakeCluster, topic: FakeTopic) -> None:
        seen: list[object] = []
        cluster.nodes[1].on_produce = lambda request: (
            seen.append(request) or Fate(error="" if len(seen) < 4 else "corrupt_batch")  # type: ignore[func-returns-value]
        )
        text = b"".join(b"%0100d\n" % number for number in range(1000))
        result = produce(cluster, topic, "--partition", "0", "--batch-bytes", "5000", stdin=text)
        assert result.code == 1
        there = len(topic.partitions[0].values())
        assert 0 < there < 1000
        summary, error = result.stderr.splitlines()
        assert summary.startswith(f"{there} records acknowledged, ")
        assert error.startswith(f"Error: {1000 - there} records were not acknowledged: ")

    def test_after_a_failure_no_more_input_is_read(
        self, cluster: FakeCluster, topic: FakeTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(produce_module, "PIECE_BYTES", 1000)
        cluster.nodes[1].on_produce = lambda request: Fate(error="corrupt_batch")
        (tmp_path / "lines").write_bytes(b"0123456789\n" * 200_000)
        result = produce(cluster, topic, str(tmp_path / "lines"), "--linger-ms", "0")
        assert result.code == 1
        failed = int(result.stderr.split("Error: ")[1].split()[0])
        assert 0 < failed < 200_000

    @pytest.mark.parametrize("format", ["lines", "ndjson", "headers"])
    def test_a_record_that_is_too_large_is_named(self, cluster: FakeCluster, topic: FakeTopic, format: str) -> None:
        contents = [b"a", b"b", b"x" * 2_000_000, b"c"]
        if format == "lines":
            result = produce(cluster, topic, stdin=b"\n".join(contents))
        else:
            headers = b', "headers": {"h": "x"}' if format == "headers" else b""
            text = b"".join(b'{"partition": 1, "value": "%b"%b}\n' % (content, headers) for content in contents)
            result = produce(cluster, topic, "--format", "ndjson", stdin=text)
        assert result.code == 1
        assert sorted(map(bytes, filter(None, values(topic)))) == [b"a", b"b"]
        assert "2 records sent" in result.stderr
        assert "Error: record 3 of the input: " in result.stderr

    def test_an_unknown_topic_fails_at_once(self, cluster: FakeCluster) -> None:
        result = run("produce", "nobody", bootstrap=cluster.bootstrap, stdin=b"x\n")
        assert result.code == 1
        assert result.stderr == "Error: there is no topic 'nobody'\n"

    def test_a_partition_that_does_not_exist_fails_at_once(self, cluster: FakeCluster, topic: FakeTopic) -> None:
        result = produce(cluster, topic, "--partition", "3", stdin=b"x\n")
        assert result.code == 1
        assert "partitions 0 to 2, not 3" in result.stderr

    @pytest.mark.parametrize(
        "arguments",
        [
            ["--format", "json", "--key-separator", ":"],
            ["--key-field", "id"],
            ["--key-separator", ""],
            ["--acks", "2"],
            ["--compression", "brotli"],
            ["/does/not/exist"],
        ],
    )
    def test_contradictory_options_are_a_usage_error(self, arguments: list[str]) -> None:
        assert run("produce", "t", *arguments).code == 2


class TestTally:
    """Deliveries belong to batches, and a batch may contain records of several calls."""

    DONE = Delivery("t", 0, 0, 10, 0)

    def test_a_delivery_counts_once_in_however_many_calls_it_was_returned(self) -> None:
        tally = Tally()
        shared, other = DeliveryFuture(), DeliveryFuture()
        tally.add([shared], 4, 40)
        tally.add([other], 1, 10)
        tally.add([shared], 6, 60)
        shared.deliver(self.DONE)
        assert tally.acknowledged == 10 and tally.failed == 1

    def test_one_that_completes_during_a_call_counts_once(self) -> None:
        tally = Tally()
        shared, other = DeliveryFuture(), DeliveryFuture()
        tally.add([shared], 4, 40)
        shared.deliver(self.DONE)  # by the records of the call that returns now
        tally.add([shared, other], 7, 70)
        assert tally.acknowledged == 10
        other.deliver(Delivery("t", 0, 10, 1, 0))
        assert tally.acknowledged == 11 and tally.failed == 0

    def test_one_that_has_already_completed_counts(self) -> None:
        tally = Tally()
        done = DeliveryFuture()
        done.deliver(self.DONE)
        tally.add([done], 10, 100)
        assert tally.acknowledged == 10 and tally.acknowledged_bytes == 100

    def test_the_error_gives_the_number_and_whether_they_may_be_in_the_log(self) -> None:
        tally = Tally()
        certain, unknown = DeliveryFuture(), DeliveryFuture()
        tally.add([certain, unknown], 7, 70)
        certain.fail(InvalidRequest("corrupt_batch", "it was damaged"))
        error = tally.error(None)
        assert error.code == "corrupt_batch" and "perhaps" not in error.detail and "it was damaged" in error.detail
        unknown.fail(RetriableError("request_timed_out", "no answer"))
        assert "7 records were not acknowledged, but may be in the log" in tally.error(None).detail
        assert certain.observed and unknown.observed


def test_progress_is_shown_only_on_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress.ProgressLine("sending", 100) as line:
        line.advance(50, 3)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    with progress.ProgressLine("sending", 100) as line:
        line.advance(50, 3)
    shown = capsys.readouterr().err
    assert "sending" in shown and "3 records" in shown
    with progress.ProgressLine("sending", 100, wanted=False) as line:
        line.advance(50, 3)
    assert capsys.readouterr().err == ""
