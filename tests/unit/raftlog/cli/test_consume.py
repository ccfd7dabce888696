"""`raftlog consume` with a cluster in memory: where it starts, what it shows, when it ends."""

from __future__ import annotations

import asyncio
import itertools
import os
import select
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from raftlog.cli.records import sink as consume_sink
from raftlog.cli.records.sink import Closed, Sink
from raftlog.errors import DiskFailed
from raftlog.records.batch import Codec, RecordBatch, encode
from tests.support.cli_runner import Background, Result, run
from tests.support.client.fake_cluster import FakeCluster, FakeTopic
from tests.support.http.api_client import eventually

T0 = 1_700_000_000_000


numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with Background(FakeCluster(nodes=1)) as background:
        yield background.cluster


@pytest.fixture
def topic(cluster: FakeCluster) -> FakeTopic:
    """A new topic with two partitions."""
    return cluster.create_topic(f"t{next(numbers)}", partitions=2)


def put(topic: FakeTopic, values: Sequence[bytes | None], partition: int = 0, **columns: object) -> None:
    """Append one batch at the log's end."""
    log = topic.partitions[partition]
    times = [T0 + log.end_offset + row for row in range(len(values))]
    batch = encode(values, base_timestamp_ms=T0, timestamps_ms=times, codec=Codec.NONE, **columns)  # type: ignore[arg-type]
    assert isinstance(log.append(batch), int)


def consume(cluster: FakeCluster, topic: FakeTopic, *arguments: str) -> Result:
    return run("consume", topic.name, *arguments, bootstrap=cluster.bootstrap)


def test_isolation_determines_which_records_of_transactions_are_shown_s13(
    cluster: FakeCluster, topic: FakeTopic
) -> None:
    log = topic.partitions[0]
    for number, end in ((1, 2), (2, 0), (3, None)):
        named = {"producer_id": 1000 + number, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
        put(topic, [b"%d" % number], **named)
        if end is not None:
            log.mark((1000 + number, 0), end)
    shown = consume(cluster, topic, "--from", "earliest", "--timeout", "0.2")
    assert (shown.code, shown.stdout) == (0, b"1\n")
    eager = consume(cluster, topic, "--from", "earliest", "--timeout", "0.2", "--isolation", "read_uncommitted")
    assert eager.stdout == b"1\n2\n3\n"
    assert consume(cluster, topic, "--isolation", "serializable").code == 2


class TestFormats:
    def test_values_are_lines(self, cluster: FakeCluster, topic: FakeTopic) -> None:
        put(topic, [b"a", b"", b"\xff"])
        put(topic, [b"d", None])
        result = consume(cluster, topic, "--from", "earliest", "--max-records", "5")
        assert result.code == 0
        assert result.stdout == b"a\n\n\xff\nd\n\n"
        assert result.stderr.startswith("5 records read, ")

    @pytest.mark.parametrize(("option", "separator"), [((), b"\t"), (("--key-separator", " => "), b" => ")])
    def test_keys_are_shown_before_values(
        self, cluster: FakeCluster, topic: FakeTopic, option: tuple[str, ...], separator: bytes
    ) -> None:
        put(topic, [b"a", None], keys=[b"k", None])
        result = consume(cluster, topic, "--from", "0", "--max-records", "2", "--format", "key-value", *option)
        assert result.stdout == b"k" + separator + b"a\n" + separator + b"\n"

    def test_a_json_line_contains_everything(self, cluster: FakeCluster, topic: FakeTopic) -> None:
        put(
            topic,
            [b"text", b'{"n": 1.50}', b"\xff", None],
            partition=1,
            keys=[b"k", None, None, None],
            headers=[[("h", b"x"), ("n", None)], None, None, None],
        )
        result = consume(cluster, topic, "--from", "earliest", "--max-records", "4", "--format", "ndjson")
        lines = result.lines
        time = str(T0 + 1)
        assert lines[1] == (
            '{"partition":1,"offset":1,"timestamp":' + time + ',"key":null,"value":{"n":1.50},"headers":[]}'
        )
        documents = [msgspec.json.decode(line) for line in lines]
        assert documents[0] == {
            "partition": 1,
            "offset": 0,
            "timestamp": T0,
            "key": "k",
            "value": "text",
            "headers": [{"key": "h", "value": "x"}, {"key": "n", "value": None}],
        }
        assert [document["value"] for document in documents[2:]] == [{"base64": "/w=="}, None]

    def test_json_is_one_array(self, cluster: FakeCluster, topic: FakeTopic) -> None:
        for number in range(3):
            put(topic, [b"%d" % number])
        result = consume(cluster, topic, "--from", "earliest", "--max-records", "3", "--format", "json")
        assert [record["value"] for record in result.json] == ["0", "1", "2"]
        nothing = consume(cluster, topic, "--max-records", "0", "--format", "json")
        assert nothing.code == 0 and nothing.json == []

    @pytest.mark.parametrize("format", ["ndjson", "json"])
    def test_produce_accepts_the_output_of_consume(self, cluster: FakeCluster, topic: FakeTopic, format: str) -> None:
        for partition in (0, 1):
            put(
                topic,
                [b"text", b'{"a": 1}', b'{"base64": "aa=="}', b"\xff\x00", b"null", None, b"", b"[1"],
                partition,
                keys=[b"k", None, b"\xfe", b"", None, b"5", None, None],
                headers=[[("h", b"\xff"), ("h", b"{}")], None, None, None, None, None, None, [("", None)]],
            )
        copy = cluster.create_topic(topic.name + "-copy", partitions=2)
        shown = consume(cluster, topic, "--from", "earliest", "--max-records", "16", "--format", format)
        sent = run("produce", copy.name, "--format", format, bootstrap=cluster.bootstrap, stdin=shown.stdout)
        assert sent.code == 0, sent.stderr
        for source, target in zip(topic.partitions, copy.partitions, strict=True):
            (before,) = source.batches
            copied = [record for batch in target.batches for record in RecordBatch(batch).records()]
            expected = [
                # JSON is shown as JSON, on one line.
                msgspec.structs.replace(record, value=b'{"a":1}') if record.value == b'{"a": 1}' else record
                for record in RecordBatch(before).records()
            ]
            assert copied == expected


class TestStart:
    @pytest.mark.parametrize(
        ("start", "first"),
        [
            ("earliest", 0),
            ("0", 0),
            ("7", 7),
            (f"@{T0 + 3}", 3),
            ("@2023-11-14T22:13:20.006Z", 6),
            ("@2023-11-14T22:13:20.006", 6),
            ("@2023-11-14T23:13:20.004+01:00", 4),
        ],
    )
    def test_it_starts_at_the_given_position(
        self, cluster: FakeCluster, topic: FakeTopic, start: str, first: int
    ) -> None:
        put(topic, [b"%d" % number for number in range(5)])
        put(topic, [b"%d" % number for number in range(5, 10)])
        result = consume(cluster, topic, "--from", start, "--max-records", "1", "--partition", "0")
        assert result.stdout == b"%d\n" % first

    def test_latest_is_the_default_and_shows_later_records(self, cluster: FakeCluster, topic: FakeTopic) -> None:
        put(topic, [b"before"])
        result = consume(cluster, topic, "--timeout", "0.2")
        assert result.code == 0
        assert result.stdout == b"" and result.stderr.startswith("0 records read")

    def test_only_the_named_partitions_are_read(self, cluster: FakeCluster, topic: FakeTopic) -> None:
        put(topic, [b"a"], 0)
        put(topic, [b"b"], 1)
        named = consume(cluster, topic, "--from", "earliest", "--partition", "1", "--timeout", "0.2")
        assert named.stdout == b"b\n"
        both = consume(
            cluster, topic, "--from", "earliest", "--max-records", "2", "--partition", "1", "--partition", "0"
        )
        assert sorted(both.lines) == ["a", "b"]

    @pytest.mark.parametrize("start", ["middle", "-1", "@", "@noon", "@1960-01-01T00:00:00Z", "１"])
    def test_other_positions_are_a_usage_error(self, start: str) -> None:
        result = run("consume", "t", "--from", start)
        assert result.code == 2
        assert "not a valid position" in result.stderr

    def test_a_missing_topic_or_partition_fails_at_once(self, cluster: FakeCluster, topic: FakeTopic) -> None:
        assert run("consume", "nobody", bootstrap=cluster.bootstrap).stderr == "Error: there is no topic 'nobody'\n"
        result = consume(cluster, topic, "--partition", "2")
        assert result.code == 1 and "partitions 0 to 1, not 2" in result.stderr

    def test_an_offset_that_the_log_does_not_have_is_an_error(self, cluster: FakeCluster, topic: FakeTopic) -> None:
        put(topic, [b"a"])
        result = consume(cluster, topic, "--from", "5", "--partition", "0", "--timeout", "5")
        assert result.code == 1
        assert "Error: " in result.stderr and "offset 5" in result.stderr


class TestSelection:
    def test_several_topics_are_read_and_named(self, cluster: FakeCluster) -> None:
        name = f"several-{next(numbers)}"
        for number in range(3):
            put(cluster.create_topic(f"{name}-{number}"), [b"a", b"b"])
        topics = [f"{name}-{number}" for number in range(3)]
        result = run(
            "consume", *topics, "--from", "earliest", "--end", "--format", "ndjson", bootstrap=cluster.bootstrap
        )
        assert result.code == 0, result.stderr
        shown = [msgspec.json.decode(line) for line in result.lines]
        assert sorted((one["topic"], one["offset"], one["value"]) for one in shown) == [
            (topic, offset, value) for topic in topics for offset, value in enumerate(["a", "b"])
        ]
        assert result.stderr.startswith(f"reading 3 topics: {', '.join(topics)}\n")
        copied = run("produce", topics[0], "--format", "ndjson", bootstrap=cluster.bootstrap, stdin=result.stdout)
        assert copied.code == 0, copied.stderr

    def test_a_pattern_shows_what_it_would_read(self, cluster: FakeCluster) -> None:
        name = f"pattern-{next(numbers)}"
        put(cluster.create_topic(f"{name}-a", partitions=2), [b"1", b"2", b"3"], 1)
        put(cluster.create_topic(f"{name}-b"), [b"4"])
        cluster.create_topic(f"other-{name}-b")
        planned = run("consume", "--regex", f"{name}-.", "--from", "1", "--plan", bootstrap=cluster.bootstrap)
        assert planned.code == 0, planned.stderr
        assert planned.table("Topic") == [
            ["Topic", "Partition", "Start", "End", "Offsets"],
            [f"{name}-a", "0", "1", "0", "0"],
            [f"{name}-a", "1", "1", "3", "2"],
            [f"{name}-b", "0", "1", "1", "0"],
        ]
        assert planned.lines[-1] == "2 topics, 3 partitions, 2 offsets."
        read = run("consume", "-r", f"{name}-.", "--from", "earliest", "--end", bootstrap=cluster.bootstrap)
        assert sorted(read.lines) == ["1", "2", "3", "4"]
        none = run("consume", "-r", f"{name}", bootstrap=cluster.bootstrap)
        assert none.code == 1 and f"no topic's whole name matches {name}" in none.stderr

    def test_the_last_records_of_each_partition(self, cluster: FakeCluster, topic: FakeTopic) -> None:
        put(topic, [b"%d" % number for number in range(10)])
        put(topic, [b"only"], 1)
        result = consume(cluster, topic, "--last", "3", "--end")
        assert sorted(result.lines) == ["7", "8", "9", "only"]
        assert result.stderr.startswith("4 records read")

    def test_a_duration_is_that_long_ago(
        self, cluster: FakeCluster, topic: FakeTopic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(topic, [b"%d" % number for number in range(10)])  # one each millisecond from T0
        monkeypatch.setattr("raftlog.cli.terminal.options.time.time", lambda: (T0 + 1_004) / 1000)
        assert consume(cluster, topic, "--from", "1s", "--end").lines == ["4", "5", "6", "7", "8", "9"]

    def test_the_end_is_that_of_the_start(self, cluster: FakeCluster, topic: FakeTopic) -> None:
        put(topic, [b"a", b"b"])
        assert consume(cluster, topic, "--from", "earliest", "--end").lines == ["a", "b"]
        assert consume(cluster, topic, "--end").stderr.startswith("0 records read"), "latest is the end"

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--from", "0", "--last", "1"),
            ("--group", "g", "--partition", "0"),
            ("--group", "g", "--last", "1"),
            ("--group", "g", "--end"),
            ("--group", "g", "--from", "5"),
            ("--last", "0"),
        ],
    )
    def test_contradicting_options_are_usage_errors(self, arguments: tuple[str, ...]) -> None:
        assert run("consume", "t", *arguments).code == 2

    def test_a_format_that_is_none_is_said_before_anything_is_read(self) -> None:
        result = run("consume", "t", "--format", "xml")
        assert result.code == 1
        assert "'xml' is no format: give value, key-value, ndjson, json, or a template" in result.stderr

    def test_templates(self, cluster: FakeCluster, topic: FakeTopic) -> None:
        put(topic, [b"v", None], keys=[b"k", None], headers=[[("h", b"x")], None])
        result = consume(cluster, topic, "--from", "earliest", "--end", "-o", "%t/%p@%o %d %k=%v{hex} [%h] %S\\n")
        assert result.lines == [
            f"{topic.name}/0@0 2023-11-14T22:13:20.000Z k=76 [h=x] 1",
            f"{topic.name}/0@1 2023-11-14T22:13:20.001Z = [] -1",
        ]


class TestEnd:
    def test_max_records_may_end_within_a_batch(self, cluster: FakeCluster, topic: FakeTopic) -> None:
        put(topic, [b"%d" % number for number in range(10)])
        result = consume(cluster, topic, "--from", "2", "--max-records", "3", "--partition", "0")
        assert result.lines == ["2", "3", "4"]
        assert result.stderr.startswith("3 records read")

    def test_output_goes_to_a_file(self, cluster: FakeCluster, topic: FakeTopic, tmp_path: Path) -> None:
        put(topic, [b"a", b"b"])
        path = tmp_path / "out"
        path.write_bytes(b"something longer from before")
        result = consume(cluster, topic, "--from", "earliest", "--max-records", "2", "--file", str(path))
        assert result.stdout == b""
        assert path.read_bytes() == b"a\nb\n"

    def test_a_file_that_cannot_be_written_is_an_error(
        self, cluster: FakeCluster, topic: FakeTopic, tmp_path: Path
    ) -> None:
        path = str(tmp_path / "no" / "such")
        result = consume(cluster, topic, "--file", path)
        assert result.code == 1
        assert result.stderr.startswith(f"Error: cannot write to {path}: No such file")

    def test_records_read_before_damage_are_written(self, cluster: FakeCluster, topic: FakeTopic) -> None:
        put(topic, [b"good"])
        put(topic, [b"bad"])
        log = topic.partitions[0]
        log.batches[1] = log.batches[1][:-1] + bytes([log.batches[1][-1] ^ 1])
        result = consume(cluster, topic, "--from", "earliest", "--partition", "0", "--format", "json")
        assert result.code == 1
        assert [record["value"] for record in result.json] == ["good"]
        assert "Error: " in result.stderr


class TestSink:
    async def test_bytes_keep_their_order_through_the_buffer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(consume_sink, "BUFFER_BYTES", 100)
        path = tmp_path / "out"
        sink = Sink(str(path))
        pieces = [b"%d," % number for number in range(500)]
        for piece in pieces:
            await sink.write(piece)
        written = path.read_bytes()
        assert 0 < len(written) < len(b"".join(pieces))
        await sink.flush()
        await sink.flush()
        sink.close()
        assert path.read_bytes() == b"".join(pieces)

    async def test_output_after_an_interrupted_write_follows_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reader, writer = os.pipe()
        with os.fdopen(reader, "rb") as read_end, os.fdopen(writer, "wb", buffering=0) as write_end:
            monkeypatch.setattr(consume_sink, "standard_output", lambda: write_end)
            sink = Sink("-")
            large = b"x" * 1_000_000  # more than a pipe holds
            writing = asyncio.create_task(sink.write(large))
            await eventually(lambda: bool(select.select([read_end], [], [], 0.0)[0]))  # the write has begun
            writing.cancel()
            await asyncio.wait([writing])
            assert writing.cancelled()
            await sink.write(b"end")
            flushing = asyncio.create_task(sink.flush())
            read = await asyncio.to_thread(read_end.read, len(large) + 3)
            await flushing
            assert read == large + b"end"

    async def test_a_closed_output_ends_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        with os.fdopen(writer, "wb", buffering=0) as write_end:
            monkeypatch.setattr(consume_sink, "standard_output", lambda: write_end)
            sink = Sink("-")
            await sink.write(b"x")
            with pytest.raises(Closed):
                await sink.flush()

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has it")
    async def test_a_full_disk_is_an_error(self) -> None:
        sink = Sink("/dev/full")
        await sink.write(b"x")
        with pytest.raises(DiskFailed, match="No space left"):
            await sink.flush()
        sink.close()
