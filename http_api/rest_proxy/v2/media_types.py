"""The media types of version 2: `application/vnd.kafka[.<format>].v2+json`, and generic ones that stand for them."""

from __future__ import annotations

from aiohttp import web

from http_api.web.bodies import JSON_TYPE, content_type
from http_api.web.call import Call
from http_api.web.negotiation import negotiate

V2_TYPE = "application/vnd.kafka.v2+json"
ANY_VERSION_TYPE = "application/vnd.kafka+json"
METADATA_TYPES = (V2_TYPE, ANY_VERSION_TYPE, JSON_TYPE)
"""Media types of answers without records, best first."""
OCTETS_TYPE = "application/octet-stream"

BINARY, JSON, TEXT = "binary", "json", "text"
EMBEDDED = (BINARY, JSON, TEXT)
"""The formats of keys and values inside JSON."""


def type_of(embedded: str) -> str:
    """Return the media type of records in a format."""
    return f"application/vnd.kafka.{embedded}.v2+json"


METADATA_BODY_TYPES = (*METADATA_TYPES, *map(type_of, EMBEDDED))
"""Media types of bodies without records: clients send the type of their records with every request."""

_FORMAT_OF = {type_of(embedded): embedded for embedded in EMBEDDED}
_FORMAT_OF_BODY = {**_FORMAT_OF, **dict.fromkeys((*METADATA_TYPES, OCTETS_TYPE), BINARY)}


def answer_type(request: web.Request) -> str:
    """Return the media type of an answer without records. Raises `InvalidRequest` (`not_acceptable`)."""
    return negotiate(request, METADATA_TYPES)


def records_type(request: web.Request, default: str = BINARY) -> tuple[str, str]:
    """Return the format of an answer's records and its media type; `default`: the format if `Accept` names none.

    Raises `InvalidRequest` (`not_acceptable`).
    """
    first = type_of(default)
    offered = (first, *(one for one in _FORMAT_OF if one != first), *METADATA_TYPES)
    chosen = negotiate(request, offered)
    return _FORMAT_OF.get(chosen, default), chosen


def format_of_body(call: Call) -> str:
    """Return the format of the records in a body. Raises `InvalidRequest` (`unsupported_media_type`)."""
    return _FORMAT_OF_BODY[content_type(call, allowed=tuple(_FORMAT_OF_BODY))]
