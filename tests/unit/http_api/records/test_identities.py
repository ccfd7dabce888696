"""The producers in whose name requests write: hashes of keys, and names from the query."""

from __future__ import annotations

import pytest

from http_api.records.identities import BatchIdentity, InTransaction, KeyedRequest, Nobody, parse_key
from raftlog.errors import InvalidRequest
from raftlog.idempotency import body_sequence, is_keyed, keyed_producer_id
from raftlog.model import EVERY_PRODUCER_ID, FIRST_KEYED_ID

TOPIC = bytes(16)


def test_a_key_has_an_id_for_each_batch_and_a_sequence_for_each_body() -> None:
    request = KeyedRequest("alice", TOPIC, "order-1", (b"text/plain", b"a"))
    first, second = request.of_batch(0), request.of_batch(1)
    assert first.producer_id != second.producer_id and first.base_sequence == second.base_sequence
    assert first == KeyedRequest("alice", TOPIC, "order-1", (b"text/plain", b"a")).of_batch(0)
    assert first.idempotency_key == "0:order-1" and not first.transactional and first.producer_epoch == 0
    assert FIRST_KEYED_ID <= first.producer_id < EVERY_PRODUCER_ID and is_keyed(first.producer_id)
    other_body = KeyedRequest("alice", TOPIC, "order-1", (b"text/plai", b"na")).of_batch(0)
    assert other_body.producer_id == first.producer_id and other_body.base_sequence != first.base_sequence
    others = [("bob", TOPIC, "order-1"), ("alice", b"\1" * 16, "order-1"), ("alice", TOPIC, "order-2")]
    assert len({KeyedRequest(*one, ()).of_batch(0).producer_id for one in others} | {first.producer_id}) == 4


def test_hashes_stay_what_they_are() -> None:
    """Retries meet the batches of earlier versions."""
    assert keyed_producer_id("alice", TOPIC, "0:order-1") == 8197982469057588608
    assert body_sequence(b"a", b"b") == 1016944912


def test_a_transaction_writes_one_batch() -> None:
    identity = InTransaction(7, 3, 12, True)
    assert identity.of_batch(0) == BatchIdentity(7, 3, 12, True)
    with pytest.raises(InvalidRequest, match="one batch"):
        identity.of_batch(1)
    assert Nobody().of_batch(5) == BatchIdentity()


@pytest.mark.parametrize(
    ("text", "key"),
    [("order-1", "order-1"), ('"order-1"', "order-1"), (' "a \\"b\\\\" ', 'a "b\\'), ("a b", "a b"), ('"x"', "x")],
)
def test_keys_are_strings_of_structured_fields_or_plain(text: str, key: str) -> None:
    assert parse_key(text) == key


@pytest.mark.parametrize("text", ["", " ", '"', '"a', '"a"b', '"a\\', '"a\\b"', '""', "é", "a\tb", "x" * 256])
def test_other_keys_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_key(text)
