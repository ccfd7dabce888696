"""The base of all requests, and the types of fields that several documents share.

An answer is a plain struct: a newer node may add fields, which a client ignores.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

Natural = Annotated[int, Meta(ge=0, le=2**62)]
NodeNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]
PartitionNumber = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TopicName = Annotated[str, Meta(max_length=249)]
HexTopicId = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
"""Topic id, as 32 hexadecimal digits."""


class OfPartition(msgspec.Struct, frozen=True):
    """The base of what an answer says of one partition."""

    topic: str
    partition: int


class OfTopicPartition(msgspec.Struct, frozen=True):
    """The same for a partition whose topic is also named by id."""

    topic: str
    topic_id: str
    partition: int


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A document that a client sends.

    A node refuses fields that it does not know, since they may change what the user means. A field that has its default
    is not sent, so an older node takes every request that it can carry out.
    """
