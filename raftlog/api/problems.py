"""Failures: problem documents (RFC 9457), and the failure of one part of a request inside a larger answer."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from raftlog.errors import RaftlogError, error_from_code


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem document, without members of the one kind of failure."""

    type: str = ""
    """`urn:raftlog:problem:` and the code."""
    title: str = ""
    status: int = 0
    detail: str = ""
    code: str
    retriable: bool = False
    applied: str = "unknown"
    """Whether the request may have taken effect: `no` or `unknown`."""
    request_id: str = ""
    leader: int | UnsetType = UNSET
    """The node to ask instead; absent if it is not known."""


class PartitionError(msgspec.Struct, frozen=True):
    """The reason why one partition of a request failed."""

    code: str
    detail: str
    retriable: bool = False
    applied: str = "unknown"
    """Whether the request may have taken effect in this partition: `no` or `unknown`."""
    leader: int | UnsetType = UNSET
    """The node to ask instead; absent if it is not known."""

    def error(self) -> RaftlogError:
        """Return it as an exception."""
        return error_from_code(self.code, self.detail)
