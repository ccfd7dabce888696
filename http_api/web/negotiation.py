"""Content negotiation: the media type of an answer (RFC 9110, 12.5.1)."""

from __future__ import annotations

from aiohttp import web

from raftlog.errors import InvalidRequest


def negotiate(request: web.Request, offered: tuple[str, ...]) -> str:
    """Return the offered media type that `Accept` prefers; the first among equals, and if there is no `Accept`.

    Raises `InvalidRequest("not_acceptable")`.
    """
    accept = ",".join(request.headers.getall("Accept", [])).strip()
    if not accept:
        return offered[0]
    ranges = [_range(text) for text in accept.lower().split(",") if text.strip()]
    best = max(offered, key=lambda media_type: _quality(media_type, ranges))
    if _quality(best, ranges) <= 0:
        raise InvalidRequest("not_acceptable", f"Accept is {accept[:128]!r}; available are {' or '.join(offered)}")
    return best


def _range(text: str) -> tuple[str, float]:
    """Parse a media range and its weight."""
    media_range, *parameters = (part.strip() for part in text.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return media_range, min(1.0, max(0.0, float(value)))
            except ValueError:
                return media_range, 0.0
    return media_range, 1.0


def _quality(media_type: str, ranges: list[tuple[str, float]]) -> float:
    """Return the weight of the most specific range that covers `media_type`."""
    kind = media_type.partition("/")[0]
    for covering in (media_type, f"{kind}/*", "*/*"):
        weights = [weight for media_range, weight in ranges if media_range == covering]
        if weights:
            return max(weights)
    return 0.0
