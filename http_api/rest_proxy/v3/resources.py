"""The common parts of all resources of version 3: their addresses, their kinds, and lists in pages."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from aiohttp import web

from http_api.web.call import Call
from http_api.web.origins import base_url
from http_api.web.replies import encoded_reply
from raftlog.errors import InvalidRequest
from raftlog.json_values import encode

T = TypeVar("T")

PAGE_QUERY = ("page_size", "page_token")
MAX_PAGE_SIZE = 10_000
_RESOURCE_COST = 512
"""Encoding a resource takes about as long as parsing this number of bytes."""


class Metadata(msgspec.Struct, frozen=True):
    """The address of a resource, and its name in Confluent's form."""

    self_url: str = msgspec.field(name="self")
    resource_name: str = ""


class ListMetadata(msgspec.Struct, frozen=True):
    """The address of a list, and that of its next page; null: there is none."""

    self_url: str = msgspec.field(name="self")
    next: str | None = None


class Related(msgspec.Struct, frozen=True):
    """The address of a related resource."""

    related: str


class ResourceList(msgspec.Struct, frozen=True):
    """A page of resources."""

    kind: str
    metadata: ListMetadata
    data: list[Any]


class Addresses:
    """Addresses of the resources of a cluster, as the client of one request sees them."""

    def __init__(self, call: Call) -> None:
        self.cluster_id = call.service.cluster_id
        self._base = base_url(call.request)

    def url(self, *segments: object) -> str:
        """Return the address of a resource of the cluster."""
        path = "".join(f"/{quote(str(segment), safe=':-._~')}" for segment in segments)
        return f"{self._base}/v3/clusters/{quote(self.cluster_id)}{path}"

    def related(self, *segments: object) -> Related:
        """Return a link to a resource of the cluster."""
        return Related(self.url(*segments))

    def metadata(self, *segments: object) -> Metadata:
        """Return the metadata of the resource with this path, which alternates between kinds and names."""
        kinds, names = segments[::2], segments[1::2]
        parts = [f"/{_KINDS.get(str(kind), kind)}={name}" for kind, name in zip(kinds, names, strict=False)]
        return Metadata(self.url(*segments), f"crn:///kafka={self.cluster_id}{''.join(parts)}")


_KINDS = {
    "topics": "topic",
    "brokers": "broker",
    "partitions": "partition",
    "replicas": "replica",
    "configs": "config",
    "consumer-groups": "consumer-group",
    "consumers": "consumer",
    "assignments": "assignment",
    "lags": "lag",
}


def check_cluster(call: Call) -> None:
    """Raise `InvalidRequest` if the path names another cluster."""
    if call.segment("cluster") != call.service.cluster_id:
        raise InvalidRequest("not_found", f"this is the cluster {call.service.cluster_id}: it knows no other")


async def reply(call: Call, document: Any, count: int = 1) -> web.Response:
    """Answer a document of about this number of resources."""
    return await encoded_reply(call, _RESOURCE_COST * count, encode, document)


async def reply_list(
    call: Call, kind: str, path: Sequence[object], entries: Sequence[T], name_of: Callable[[T], str],
    resource_of: Callable[[T], Any],
) -> web.Response:  # fmt: skip
    """Answer a page of entries, sorted by name: the page behind `page_token`, of `page_size` entries at most."""
    addresses = Addresses(call)
    size = call.query.integer("page_size", 1, MAX_PAGE_SIZE, MAX_PAGE_SIZE)
    after = _name_of_token(call.query.text("page_token"))
    found = sorted(entries, key=name_of)
    if after is not None:
        found = [entry for entry in found if name_of(entry) > after]
    page = found[:size]
    url, following = addresses.url(*path), None
    if len(found) > size:
        following = f"{url}?{urlencode({'page_size': size, 'page_token': _token(name_of(page[-1]))})}"

    def document() -> bytes:
        return encode(ResourceList(kind, ListMetadata(url, following), [resource_of(entry) for entry in page]))

    return await encoded_reply(call, _RESOURCE_COST * len(page), document)


def _token(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _name_of_token(token: str | None) -> str | None:
    if token is None:
        return None
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise InvalidRequest("invalid_request", "page_token is not one that this API gave") from None
