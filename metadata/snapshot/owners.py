"""Owners as bytes inside a snapshot: everything sorted, nothing derived, packed in steps."""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from metadata.commands.fields import WireStruct
from metadata.image.image import ClusterImage
from metadata.records.events import OwnerChanged, ProducerIdsOwned
from metadata.records.owner_table import Owners
from metadata.records.owners import Owned, OwnedIds, OwnedName

from .steps import PER_STEP, encoded_in_steps


class _PackedOwner(WireStruct, frozen=True):
    kind: Owned
    name: OwnedName
    owner: str


class _PackedOwners(WireStruct, frozen=True):
    """The table; elements are encoded on their own, since encoding all at once would take too long."""

    owners: tuple[msgspec.Raw, ...]
    ids: tuple[msgspec.Raw, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_PackedOwners)
_owner_decoder = msgspec.msgpack.Decoder(_PackedOwner)
_ids_decoder = msgspec.msgpack.Decoder(OwnedIds)


def pack_owners(owners: Owners) -> Generator[None, None, msgspec.Raw]:
    """Encode the current table in steps; later changes are not included. Equal tables give equal bytes."""
    return _pack(list(owners.items()), owners.ids())


def _pack(by_kind: list[tuple[Owned, dict[OwnedName, str]]], ids: list[OwnedIds]) -> Generator[None, None, msgspec.Raw]:
    packed: list[msgspec.Raw] = []
    for kind, owners in by_kind:
        yield
        # The names of one kind are all texts or all numbers. A hundred thousand are sorted in some milliseconds.
        names = sorted(owners, key=_order)
        packed += yield from encoded_in_steps(_PackedOwner(kind, name, owners[name]) for name in names)
    packed_ids = yield from encoded_in_steps(ids)
    return msgspec.Raw(_encoder.encode(_PackedOwners(tuple(packed), packed_ids)))


def _order(name: OwnedName) -> tuple[int, str]:
    return (name, "") if isinstance(name, int) else (0, name)


def unpack_owners(state: ClusterImage, packed: bytes | memoryview) -> Generator[None, None, None]:
    """Decode owners into an empty state. Raises what msgspec raises for invalid bytes, `ValueError` included."""
    whole = _decoder.decode(packed)
    for number, one in enumerate(whole.owners, 1):
        found = _owner_decoder.decode(one)
        state.note(OwnerChanged(found.kind, found.name, found.owner))
        if number % PER_STEP == 0:
            yield
    for number, one in enumerate(whole.ids, 1):
        state.note(ProducerIdsOwned(_ids_decoder.decode(one)))
        if number % PER_STEP == 0:
            yield
