"""The envelope of commands: decoding, refusal, and that nothing undecodable can be encoded."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.commands.cluster import (
    MAX_ELECTIONS_PER_COMMAND,
    CreateTopic,
    ElectLeaders,
    FenceBroker,
    NoOp,
    RegisterBroker,
)
from metadata.commands.envelope import (
    COMMAND_TYPES,
    MAX_COMMAND_BYTES,
    TAGS,
    ClientSession,
    UnknownCommand,
    decode,
    decode_result,
    encode,
    encode_result,
)
from metadata.commands.fields import Election, PackedReports
from metadata.commands.results import Done, Elected, Refused
from raftlog.errors import InvalidRequest, RaftlogError, RemoteProtocolError
from raftlog.model import BrokerId, Endpoint, Incarnation, PartitionEpoch
from tests.support.metadata.cluster import TOPIC, directory, report

SESSION = ClientSession(b"s" * 16, 7, 41)


def test_an_envelope_survives_encoding() -> None:
    command = FenceBroker(BrokerId(3), Incarnation(9))
    envelope = decode(encode(command, term=5, session=SESSION))
    assert (envelope.command, envelope.term, envelope.session) == (command, 5, SESSION)
    plain = decode(encode(NoOp()))
    assert (plain.command, plain.term, plain.session) == (NoOp(), None, None)


@pytest.mark.parametrize("packed", [False, True])
def test_a_registration_contains_the_reports(packed: bool) -> None:
    reports = [report(3, 17, cut=True)]
    command = RegisterBroker.of(
        BrokerId(1),
        directory(1),
        4,
        api=Endpoint("a", 1),
        data=Endpoint("::1", 2),
        rack="east",
        feature_level=1,
        reports=PackedReports.of(reports) if packed else reports,
    )
    decoded = decode(encode(command)).command
    assert decoded == command
    assert isinstance(decoded, RegisterBroker)
    assert (decoded.api.endpoint, decoded.data.endpoint) == (Endpoint("a", 1), Endpoint("::1", 2))
    assert decoded.reports[0].topic_id == TOPIC
    assert (decoded.reports[0].last_epoch, decoded.reports[0].stable_end_offset) == (3, 17)
    assert decoded.reports[0].cut_or_quarantined


def test_every_command_names_its_version() -> None:
    assert len(TAGS) == len(COMMAND_TYPES)
    assert all(tag.rpartition(".")[2].isdigit() for tag in TAGS)


@pytest.mark.parametrize(
    "fields",
    [
        [2],
        [2, None, None, ["no_op.1"]],
        [99, "anything", {"at": "all"}],
        [1, None, None, ["no_op.2"]],
        [1, None, None, ["launch_rocket.1", 1, 2]],
        [1, None, None, ["alter_isr.9"]],
    ],
)
def test_a_newer_command_is_distinguished_from_a_broken_one(fields: list[object]) -> None:
    with pytest.raises(UnknownCommand, match="must be upgraded"):
        decode(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\xc1",
        b"\x91" * 100_000,
        msgspec.msgpack.encode([1, None, None, ["no_op.1", "surplus"]]),
        msgspec.msgpack.encode([1, None, None, ["no_op.1"], "surplus"]),
        msgspec.msgpack.encode([1, None, None, ["fence_broker.1", 1]]),
        msgspec.msgpack.encode([1, None, -1, ["no_op.1"]]),
        msgspec.msgpack.encode([0, None, None, ["no_op.1"]]),
        msgspec.msgpack.encode([1, [b"short", 1, 1], None, ["no_op.1"]]),
        msgspec.msgpack.encode([1, None, None, []]),
        b"\x00" * (MAX_COMMAND_BYTES + 1),
    ],
    ids=range(11),
)
def test_broken_bytes_are_the_peers_error(packed: bytes) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode(packed)
    assert not isinstance(caught.value, UnknownCommand)


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(packed: bytes) -> None:
    for read in (decode, decode_result):
        try:
            read(packed)
        except RaftlogError as error:
            assert isinstance(error, RemoteProtocolError)


@given(st.data())
def test_a_changed_byte_is_another_command_or_refused(data: st.DataObject) -> None:
    packed = bytearray(encode(FenceBroker(BrokerId(3), Incarnation(900)), term=5, session=SESSION))
    packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        envelope = decode(bytes(packed))
    except RemoteProtocolError:
        return
    assert encode(envelope.command, term=envelope.term, session=envelope.session)


@pytest.mark.parametrize(
    "command",
    [
        FenceBroker(BrokerId(-1), Incarnation(1)),
        CreateTopic("x", b"short", ((BrokerId(0),),)),  # type: ignore[arg-type]
        CreateTopic("x" * 2000, TOPIC, ((BrokerId(0),),)),
        ElectLeaders(
            (Election(TOPIC, 0, BrokerId(0), Incarnation(1), PartitionEpoch(0)),) * (MAX_ELECTIONS_PER_COMMAND + 1)
        ),
    ],
)
def test_a_command_that_no_node_could_decode_is_not_encoded(command: FenceBroker) -> None:
    with pytest.raises(InvalidRequest):
        encode(command)


def test_the_size_of_a_command_is_bounded() -> None:
    replicas = tuple((BrokerId(i),) for i in range(70_000, 1_300_000))
    with pytest.raises(InvalidRequest, match="bytes"):
        encode(CreateTopic("x", TOPIC, replicas))


def test_answers_survive_encoding() -> None:
    for result in (Done(), Refused("not_leader", "x"), Elected((None, Refused("not_eligible", "y")))):
        assert decode_result(encode_result(result)) == result


def test_a_refusal_is_an_exception_by_its_code() -> None:
    error = Refused("topic_exists", "there it is").error()
    assert isinstance(error, InvalidRequest)
    assert (error.code, error.detail) == ("topic_exists", "there it is")
