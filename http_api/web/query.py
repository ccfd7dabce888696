"""Typed query parameters and path segments of a request; unknown, repeated and out-of-range ones are refused by
name."""

from __future__ import annotations

import re
from collections.abc import Collection

from aiohttp import web
from multidict import MultiDict, MultiMapping

from raftlog.errors import InvalidRequest

MAX_INT64 = 2**63 - 1
MAX_OFFSET = 2**62
"""The greatest offset that a fetch request can carry."""
_NO_QUERY: MultiMapping[str] = MultiDict()
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,40}", re.ASCII)


class Query:
    """The query of one request."""

    def __init__(
        self, request: web.Request, allowed: Collection[str] = (), *, repeatable: Collection[str] = ()
    ) -> None:
        # Most addresses have no query, and need not be parsed.
        self._query = request.query if "?" in request.raw_path else _NO_QUERY
        self._allowed = allowed
        self._repeatable = repeatable

    def check(self) -> None:
        """Raise `InvalidRequest` for a parameter that is in neither list, or that is in the first and repeated."""
        for name in self._query:
            if name in self._repeatable:
                continue
            if name not in self._allowed:
                known = ", ".join(sorted([*self._allowed, *self._repeatable])) or "none"
                raise InvalidRequest("invalid_request", f"unknown query parameter {name[:64]!r}; known are {known}")
            if len(self._query.getall(name)) > 1:
                raise InvalidRequest("invalid_request", f"query parameter {name} is given twice")

    def text(self, name: str) -> str | None:
        """Return the parameter's text, or None if it is absent."""
        return self._query.get(name)

    def texts(self, name: str) -> list[str]:
        """Return all values of a repeatable parameter."""
        return self._query.getall(name, [])

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """Return the parameter, one of `choices`."""
        text = self._query.get(name, default)
        if text not in choices:
            raise InvalidRequest("invalid_request", f"{name} must be {' or '.join(choices)}, not {text[:64]!r}")
        return text

    def integer(self, name: str, low: int, high: int, default: int) -> int:
        """Return the parameter as an integer within `low..high`."""
        text = self._query.get(name)
        return default if text is None else integer(name, text, low, high)

    def timestamp(self, name: str) -> int | None:
        """Return the parameter as milliseconds since 1970. Raises `InvalidRequest("timestamp_out_of_range")`."""
        text = self._query.get(name)
        return None if text is None else timestamp(name, text)


def integer(name: str, text: str, low: int, high: int) -> int:
    """Return `text` as an integer within `low..high`. Raises `InvalidRequest` with its name."""
    if not _WHOLE_NUMBER.fullmatch(text) or not low <= int(text) <= high:
        raise InvalidRequest(
            "invalid_request", f"{name} must be a whole number between {low} and {high}, not {text[:64]!r}"
        )
    return int(text)


def timestamp(name: str, text: str) -> int:
    """Return `text` as milliseconds since 1970. Raises `InvalidRequest`, for a number out of range
    `timestamp_out_of_range`."""
    if not _WHOLE_NUMBER.fullmatch(text):
        raise InvalidRequest("invalid_request", f"{name} must be milliseconds since 1970, not {text[:64]!r}")
    return check_timestamp(name, int(text))


def check_timestamp(name: str, milliseconds: int) -> int:
    """Return `milliseconds` if a record can have that timestamp. Raises `InvalidRequest("timestamp_out_of_range")`."""
    if not 0 <= milliseconds <= MAX_INT64:
        raise InvalidRequest(
            "timestamp_out_of_range", f"{name} must be between 0 and {MAX_INT64} ms since 1970, not {milliseconds}"
        )
    return milliseconds
