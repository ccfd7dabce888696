"""The newest lines of this node's audit log, for administrators.

They name every caller and resource, and a failed login has the name that was given, which may be a mistyped password:
the right to describe the cluster does not suffice.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from aiohttp import web

from http_api.web.call import Call
from http_api.web.replies import encoded_reply
from raftlog.api.audit import MAX_LINES, AuditLine, AuditLines
from raftlog.json_values import encode

QUERY = ("limit",)
DEFAULT_LINES = 200
_LINE_COST = 512
"""Decoding and encoding a line takes about as long as parsing this number of bytes."""

_decoder = msgspec.json.Decoder(AuditLine)


async def list_audit_lines(call: Call) -> web.StreamResponse:
    """List the newest lines."""
    audit = call.service.recent_audit
    lines = audit.recent(call.query.integer("limit", 1, MAX_LINES, DEFAULT_LINES))
    return await encoded_reply(call, _LINE_COST * len(lines), _page, audit.level, call.service.node_id, lines)


def _page(level: str, node_id: int, lines: Sequence[bytes]) -> bytes:
    return encode(AuditLines(bool(level), level, node_id, [_decoder.decode(line) for line in lines]))
