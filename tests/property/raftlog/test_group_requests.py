"""Requests of members: whatever a node decodes as one can be proposed to the quorum and decoded by every node (S11)."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metadata.commands.envelope import decode, encode
from metadata.commands.groups import ChangeGroups, Commit, GroupChange
from metadata.commands.groups import OffsetToCommit as CommandOffset
from raftlog.broker.changes.groups import command_offsets
from raftlog.errors import InvalidRequest
from raftlog.wire import CommitOffsetsRequest, OffsetToCommit, decode_request
from raftlog.wire import encode as encode_message

TOPIC_IDS = st.binary(min_size=15, max_size=17)
NUMBERS = st.integers(-2, 2**64 - 1) | st.sampled_from([0, 2**31 - 1, 2**31, 2**62, 2**62 + 1])
TEXTS = st.text(max_size=8) | st.sampled_from(["", "g", "x" * 255, "x" * 256, "é" * 255, "y" * 1024, "y" * 1025])
OFFSETS = st.builds(OffsetToCommit, TOPIC_IDS, NUMBERS, NUMBERS, NUMBERS | st.just(-1), TEXTS)
COMMITS = st.builds(CommitOffsetsRequest, NUMBERS, TEXTS, TEXTS, NUMBERS, NUMBERS, st.lists(OFFSETS, max_size=3))
_change_decoder: msgspec.msgpack.Decoder[GroupChange] = msgspec.msgpack.Decoder(GroupChange)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(COMMITS)
def test_a_commit_that_a_node_decodes_is_one_that_every_node_decodes_s11(commit: CommitOffsetsRequest) -> None:
    """So `ChangeBatches` need not decode it once more before it shares a command with changes of other callers."""
    try:
        message = b"".join(map(bytes, encode_message(commit)))  # type: ignore[arg-type]
        request: Any = decode_request(message)[0]
    except (InvalidRequest, UnicodeError, OverflowError):
        return
    who = (request.group_id, request.member_id, request.incarnation, request.generation)
    change = Commit(*who, 1_700_000_000_000, command_offsets(request.offsets))
    assert _change_decoder.decode(msgspec.msgpack.encode(change)) == change
    assert decode(encode(ChangeGroups((change,)))).command == ChangeGroups((change,))


def fields_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The bounds of every field, as JSON schema."""
    schema = msgspec.json.schema(kind)
    found: dict[str, Any] = schema["$defs"][kind.__name__]
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    offset = 1 if kind.__struct_config__.tag else 0
    return dict(zip(names, found["prefixItems"][offset:], strict=True))


def test_every_field_of_a_commit_has_the_bounds_of_the_commands_s11() -> None:
    """The exact bounds, which random requests hardly meet."""

    def bounds(schema: dict[str, Any]) -> dict[str, Any]:
        kept = ("minimum", "maximum", "minLength", "maxLength", "maxItems", "type")
        return {name: value for name, value in schema.items() if name in kept}

    for wire_kind, command_kind in ((CommitOffsetsRequest, Commit), (OffsetToCommit, CommandOffset)):
        wire, command = fields_of(wire_kind), fields_of(command_kind)
        for name in wire.keys() & command.keys():
            assert bounds(wire[name]) == bounds(command[name]), (wire_kind, name)
    assert set(fields_of(Commit)) - set(fields_of(CommitOffsetsRequest)) == {"now_ms"}
