"""A topic whose keys and values have Python types: functions to and from bytes, once for programs that write and read.

Producers, consumers and transactions, with and without an event loop, carry bytes; a `TypedTopic` stands beside them:

    orders = TypedTopic("orders", key=TEXT, value=json_of(Order))
    producer.send(**orders.record(Order("tea", 2), key="ada"))
    order = orders.read(record).value
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar

import msgspec

from raftlog.client.consuming.records import ConsumerRecord
from raftlog.config import check_topic_name
from raftlog.records.batch import Header

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Serde(Generic[T]):
    """A serializer and its deserializer. Null keys and values (tombstones) never reach them."""

    serialize: Callable[[T], bytes]
    deserialize: Callable[[bytes], T]


BYTES: Serde[bytes] = Serde(bytes, bytes)
"""Bytes as they are."""
TEXT: Serde[str] = Serde(str.encode, bytes.decode)
"""Text in UTF-8."""


def json_of(kind: type[T]) -> Serde[T]:
    """Return the serde of JSON in UTF-8, of a dataclass, a `msgspec.Struct`, a `TypedDict` or any other type that
    msgspec supports; values are checked against the type when they are read.
    """
    return Serde(msgspec.json.Encoder().encode, msgspec.json.Decoder(kind).decode)


class UnreadableRecord(ValueError):
    """A record whose key or value its deserializer did not accept, with the record; the cause is its `__cause__`."""

    def __init__(self, what: str, record: ConsumerRecord, reason: Exception) -> None:
        super().__init__(f"the {what} of {record.topic}/{record.partition}@{record.offset} cannot be read: {reason}")
        self.record = record


class RecordArguments(TypedDict):
    """The arguments of `send`, `send_when_room` and `send_and_wait` for one record."""

    topic: str
    value: bytes | None
    key: bytes | None


class ColumnArguments(TypedDict):
    """The arguments of `send_many` for several records."""

    topic: str
    values: list[bytes | None]
    keys: list[bytes | None] | None


@dataclass(frozen=True, slots=True)
class TypedRecord(Generic[K, V]):
    """A record with its key and value as objects; None stands for null: no key, or a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: K | None
    value: V | None
    headers: tuple[Header, ...]


class TypedTopic(Generic[K, V]):
    """A topic, and how its keys and values become bytes and objects."""

    def __init__(self, name: str, *, key: Serde[K], value: Serde[V]) -> None:
        """Raises `InvalidRequest` (`invalid_topic_name`)."""
        self.name = check_topic_name(name)
        self._key = key
        self._value = value

    def record(self, value: V | None, key: K | None = None) -> RecordArguments:
        """Return the arguments that send one record: `producer.send(**orders.record(value, key=key))`.

        A value of None is a tombstone. Raises what the serializers raise.
        """
        return {"topic": self.name, "value": _bytes(self._value, value), "key": _bytes(self._key, key)}

    def columns(self, values: Iterable[V | None], keys: Iterable[K | None] | None = None) -> ColumnArguments:
        """Return the arguments that send many records: `producer.send_many(**orders.columns(values, keys))`.

        Raises what the serializers raise.
        """
        return {
            "topic": self.name,
            "values": [_bytes(self._value, one) for one in values],
            "keys": None if keys is None else [_bytes(self._key, one) for one in keys],
        }

    def read(self, record: ConsumerRecord) -> TypedRecord[K, V]:
        """Return a record that a consumer read, with objects. Raises `UnreadableRecord`."""
        return TypedRecord(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp_ms,
            _object("key", self._key, record.key, record),
            _object("value", self._value, record.value, record),
            record.headers,
        )


def _bytes(serde: Serde[Any], value: Any) -> bytes | None:
    return None if value is None else serde.serialize(value)


def _object(what: str, serde: Serde[T], data: bytes | None, record: ConsumerRecord) -> T | None:
    if data is None:
        return None
    try:
        return serde.deserialize(data)
    except Exception as error:  # The deserializer is the program's: whatever it raises, the record is named.
        raise UnreadableRecord(what, record, error) from error
