"""Topics with types: bytes for producers, objects from consumers' records, and records that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import raftlog
from raftlog import BYTES, TEXT, ConsumerRecord, InvalidRequest, TypedTopic, UnreadableRecord, json_of


@dataclass
class Order:
    item: str
    cups: int = 1


ORDERS = TypedTopic("orders", key=TEXT, value=json_of(Order))


def read(key: bytes | None, value: bytes | None) -> ConsumerRecord:
    return ConsumerRecord("orders", 2, 7, 1_800_000_000_000, key, value, (("source", b"web"),))


def test_a_record_there_and_back() -> None:
    sent = ORDERS.record(Order("tea", 2), key="ada")
    assert sent == {"topic": "orders", "value": b'{"item":"tea","cups":2}', "key": b"ada"}
    found = ORDERS.read(read(sent["key"], sent["value"]))
    assert (found.key, found.value, found.offset, found.headers) == ("ada", Order("tea", 2), 7, (("source", b"web"),))


def test_nulls_are_no_objects() -> None:
    assert ORDERS.record(None, key="ada") == {"topic": "orders", "value": None, "key": b"ada"}
    found = ORDERS.read(read(None, None))
    assert found.key is None and found.value is None


def test_many_records() -> None:
    columns = ORDERS.columns([Order("tea"), None], ["ada", None])
    assert columns == {"topic": "orders", "values": [b'{"item":"tea","cups":1}', None], "keys": [b"ada", None]}
    assert ORDERS.columns([])["keys"] is None


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        (b"ada", b'{"item": "tea", "cups": "two"}', "the value of orders/2@7 cannot be read: Expected `int`"),
        (b"ada", b"tea", "the value of orders/2@7 cannot be read"),
        (b"\xff", b'{"item": "tea"}', "the key of orders/2@7 cannot be read"),
    ],
)
def test_a_record_that_cannot_be_read_is_named(key: bytes, value: bytes, told: str) -> None:
    with pytest.raises(UnreadableRecord, match=told) as caught:
        ORDERS.read(read(key, value))
    assert caught.value.record.offset == 7 and caught.value.__cause__ is not None


def test_serializers_raise_in_their_own_words() -> None:
    with pytest.raises(TypeError):
        ORDERS.record(Order("tea"), key=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="invalid_topic_name"):
        TypedTopic("no/topic", key=BYTES, value=BYTES)
    assert raftlog.TypedTopic is TypedTopic
