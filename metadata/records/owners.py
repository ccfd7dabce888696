"""Owners: the principals to which groups, transactional ids, blocks of producer ids, positions and producer ids belong.

An owner is the name of a user, as it was authenticated when it made the record. It never changes while the record
exists. Records of a cluster without security have no owner, written as an empty name.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from raftlog.model import ProducerId

NO_OWNER = ""

OwnedName: TypeAlias = str | int
"""The name of a record; of a block its first producer id."""


class Owned(enum.Enum):
    """The kinds of records that have owners."""

    GROUP = "group"
    TRANSACTIONAL_ID = "transactional_id"
    BLOCK = "block"
    POSITION = "position"


class OwnedIds(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """Producer ids `[first, end)` that were granted to a principal; in snapshots an array of these fields."""

    first: ProducerId
    end: ProducerId
    owner: str
