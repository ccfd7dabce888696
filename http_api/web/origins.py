"""The address by which a client reached the API, for the links in answers: behind a proxy it is not the node's own.

A proxy tells it in `Forwarded` (RFC 7239) or in the older `X-Forwarded-*`. They are believed from any sender,
because the links go to the sender of the request only; but they must be addresses.
"""

from __future__ import annotations

import re

from aiohttp import web

_SCHEME = re.compile(r"https?", re.IGNORECASE)
_HOST = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(?::[0-9]{1,5})?")
_PORT = re.compile(r"[0-9]{1,5}")
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~-]{1,64}){1,8}/?")
_PAIR = re.compile(r'\s*([A-Za-z]+)\s*=\s*(?:"([^"]*)"|([^";,\s]*))\s*(?:;|$)')


def base_url(request: web.Request) -> str:
    """Return scheme, host and path prefix of the API as the client sees them, without a slash at the end."""
    headers = request.headers
    told = _forwarded(headers.get("Forwarded", ""))
    scheme = _valid(_SCHEME, told.get("proto") or _first(headers.get("X-Forwarded-Proto", "")))
    host = _valid(_HOST, told.get("host") or _first(headers.get("X-Forwarded-Host", "")))
    port = "" if told.get("host") else _valid(_PORT, _first(headers.get("X-Forwarded-Port", "")))
    prefix = _valid(_PREFIX, _first(headers.get("X-Forwarded-Prefix", "")))
    host = host or request.host
    if port and not re.search(r":[0-9]+$", host):
        host = f"{host}:{port}"
    return f"{(scheme or request.scheme).lower()}://{host}{prefix.rstrip('/')}"


def _forwarded(header: str) -> dict[str, str]:
    """Return the parameters of the first element: the proxy that is nearest to the client."""
    first = re.split(r',(?=(?:[^"]*"[^"]*")*[^"]*$)', header, maxsplit=1)[0]
    return {name.lower(): quoted or plain for name, quoted, plain in _PAIR.findall(first)}


def _first(header: str) -> str:
    return header.partition(",")[0].strip()


def _valid(pattern: re.Pattern[str], text: str) -> str:
    return text if text and pattern.fullmatch(text) else ""
