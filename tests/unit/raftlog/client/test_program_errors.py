"""Mistakes of programs: each gets an error, or a warning, that says what to do."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from raftlog import Consumer, GroupPartition, InvalidRequest, Producer
from raftlog.client.cluster import outage
from raftlog.errors import ClientClosed
from raftlog.sync import Producer as BlockingProducer
from tests.support.http.api_client import PATIENCE_S

DOWN = "127.0.0.1:1"


def test_a_single_string_is_no_list_of_topics() -> None:
    with pytest.raises(InvalidRequest, match=r"topics must be a list of names: \['clicks'\]"):
        Consumer.subscribe(DOWN, "billing", "clicks")
    with pytest.raises(InvalidRequest, match="invalid_topic_name"):
        Consumer.subscribe(DOWN, "billing", ["no spaces"])
    with pytest.raises(InvalidRequest, match="partitions must be a list of numbers, not '12'"):
        Consumer(DOWN, "clicks", "12")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offsets", "told"),
    [
        ({"clicks": 5}, "a partition must be a GroupPartition or (topic, partition), not 'clicks'"),
        ({GroupPartition("clicks", 0, "1" * 32): "5"}, "an offset must be an int, not '5'"),
        ([("clicks", 0)], "offsets must be a mapping from partitions to offsets, not list"),
    ],
)
async def test_what_is_no_offset_is_not_committed(offsets: Any, told: str) -> None:
    consumer = Consumer.subscribe(DOWN, "billing", ["clicks"])
    with pytest.raises(TypeError) as caught:
        await consumer.commit(offsets)
    assert str(caught.value) == told
    with pytest.raises(TypeError):
        consumer.commit_soon(offsets)
    with pytest.raises(InvalidRequest, match="clicks/0 is not assigned to this consumer"):
        await consumer.commit({("clicks", 0): 5})
    await consumer.close()


async def test_a_closed_client_says_that_no_retry_helps() -> None:
    producer = Producer(DOWN)
    await producer.close()
    consumer = Consumer.subscribe(DOWN, "billing", ["clicks"])
    await consumer.close()
    for call in (lambda: producer.send("clicks", b"x"), producer.transaction, lambda: consumer.pause([])):
        with pytest.raises(ClientClosed, match="create a new one") as caught:
            call()
        assert (caught.value.code, caught.value.retriable) == ("shutting_down", False)


async def test_a_value_of_another_type_is_refused_with_the_type_to_use() -> None:
    producer = Producer(DOWN)
    with pytest.raises(TypeError, match="a value must be bytes or None, not int"):
        producer.send("clicks", 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a key must be bytes or None, not str: encode it, as in text\.encode\(\)"):
        producer.send("clicks", b"", "key")  # type: ignore[arg-type]
    await producer.close()


def test_the_blocking_producer_says_the_same_with_the_result() -> None:
    with BlockingProducer(DOWN) as producer:
        sent = producer.send("clicks", 5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="a value must be bytes or None, not int"):
            sent.result(timeout=30)
        assert "TypeError" not in repr(sent) and "not int" in repr(sent)


async def test_a_consumer_logs_that_the_cluster_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outage, "FIRST_AFTER", 0.0)
    alone, member = Consumer(DOWN, "clicks"), Consumer.subscribe(DOWN, "billing", ["clicks"])

    def told() -> bool:
        texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        return all(
            any(text.startswith(f"{who}: the cluster has not answered") and "cannot connect" in text for text in texts)
            for who in ("consumer of topic clicks", "group member")
        )

    async with asyncio.timeout(PATIENCE_S):
        while not told():
            assert await alone.poll(timeout=0.05) == [] and await member.poll(timeout=0.05) == []
    await alone.close()
    await member.close()


UNCLOSED = """
import asyncio, warnings
warnings.simplefilter("always")
from raftlog import Producer

async def main():
    producer = Producer("127.0.0.1:1")
    producer.send("clicks", b"x" * 1000)
    await asyncio.sleep(0)

asyncio.run(main())
"""
UNCLOSED_BLOCKING = """
import warnings
warnings.simplefilter("always")
from raftlog.sync import Producer

producer = Producer("127.0.0.1:1")
print(producer.send("clicks", b"x" * 1000))
"""
CLOSED = """
import warnings
warnings.simplefilter("error")
from raftlog.sync import Producer

producer = Producer("127.0.0.1:1")
producer.close()
"""


@pytest.mark.parametrize("program", [UNCLOSED, UNCLOSED_BLOCKING])
def test_a_producer_that_is_not_closed_reports_what_is_lost(program: str) -> None:
    told = errors_of(program)
    lost = r"a producer was not closed, and \d+ bytes of records were not acknowledged"
    assert len(re.findall(f"^{lost}: use", told, re.MULTILINE)) == 1, told
    assert len(re.findall(f"ResourceWarning: {lost}$", told, re.MULTILINE)) == 1, told


def test_a_closed_producer_reports_nothing() -> None:
    assert errors_of(CLOSED) == ""


def errors_of(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stderr


def test_debug_logging_is_not_filled_by_header_compression() -> None:
    program = (
        "import logging; logging.basicConfig(level=logging.DEBUG); import raftlog.client.cluster.transport;"
        "print(logging.getLogger('hpack.hpack').isEnabledFor(logging.DEBUG))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
