"""A reader of EDN, Clojure's data notation: the part of it that histories use.

    nil true false 1 -2 3N 1.5 "text" \\a :keyword symbol (list) [vector] {map} #{set} #tag value ; comment #_ discarded

Lists and vectors become tuples, maps dictionaries, sets frozensets, keywords `Keyword` (text without the colon), so
that every value but a map can be a key. A tag is dropped, its value kept. Nesting is bounded.

The EDN libraries on the package index have had no release for years, and take minutes to parse a history of a few
megabytes. Source: the EDN specification (github.com/edn-format/edn).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

from raftlog.errors import InvalidRequest

NESTING_MAX = 100


class Keyword(str):
    """`:ok` is `Keyword("ok")`, and equal to the text."""

    __slots__ = ()


_TOKEN = re.compile(
    r"""[\s,]+|;[^\n]*             # nothing
      | (?P<open>\#\{|[\(\[\{])    | (?P<close>[\)\]\}])
      | (?P<text>"(?:[^"\\]|\\.)*")
      | (?P<char>\\(?:newline|space|tab|return|u[0-9a-fA-F]{4}|.))
      | (?P<discard>\#_)           | (?P<tag>\#[A-Za-z][^\s,()\[\]{}";]*)
      | (?P<word>[^\s,()\[\]{}";\\]+)""",
    re.VERBOSE | re.DOTALL,
)
_INTEGER = re.compile(r"[+-]?\d+N?")
_FLOAT = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d+)?M?")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
_CHARACTERS = {"newline": "\n", "space": " ", "tab": "\t", "return": "\r"}
_CLOSING = {"(": ")", "[": "]", "{": "}", "#{": "}"}
_CONSTANTS = {"nil": None, "true": True, "false": False}

_Token: TypeAlias = tuple[str, str, int]
"""Kind, text, position."""


def read_all(text: str) -> list[Any]:
    """Return every value of a text, in order. Raises `InvalidRequest`, which names the line."""
    reader = _Reader(text)
    values: list[Any] = []
    while True:
        found = reader.value(0)
        if found is _END:
            return values
        values.append(found)


_END = object()
_CLOSED = object()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._tokenized()

    def _tokenized(self) -> Iterator[_Token]:
        text, position = self._text, 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise self._error(position, f"{text[position : position + 10]!r} is not EDN")
            if match.lastgroup is not None:
                yield match.lastgroup, match.group(), position
            position = match.end()

    def _error(self, position: int, detail: str) -> InvalidRequest:
        line = self._text.count("\n", 0, position) + 1
        return InvalidRequest("invalid_request", f"line {line}: {detail}")

    def value(self, depth: int, closing: str = "") -> Any:
        """Return the next value, `_CLOSED` at this bracket, or `_END` after the last one."""
        for kind, text, position in self._tokens:
            match kind:
                case "open":
                    return self._collection(text, position, depth + 1)
                case "close":
                    if text != closing:
                        raise self._error(position, f"{text} has no opening bracket")
                    return _CLOSED
                case "text":
                    return self._whole(_ESCAPE.sub(_unescaped, text[1:-1]), position)
                case "char":
                    return self._whole(_character(text[1:]), position)
                case "tag":
                    continue  # the value after it counts
                case "discard":
                    self._something(position, depth + 1)
                case _:
                    return self._word(text, position)
        return _END

    def _something(self, position: int, depth: int) -> Any:
        found = self.value(depth)
        if found is _END:
            raise self._error(position, "the text ends in the middle of a value")
        return found

    def _collection(self, opening: str, position: int, depth: int) -> Any:
        if depth > NESTING_MAX:
            raise self._error(position, f"values are nested deeper than {NESTING_MAX}")
        items = []
        while (item := self.value(depth, _CLOSING[opening])) is not _CLOSED:
            if item is _END:
                raise self._error(position, f"{opening} is not closed")
            items.append(item)
        try:
            if opening == "{":
                if len(items) % 2:
                    raise self._error(position, "a map has a key without a value")
                return dict(zip(items[::2], items[1::2], strict=True))
            return frozenset(items) if opening == "#{" else tuple(items)
        except TypeError:
            raise self._error(position, "a map cannot be a key of a map, or in a set") from None

    def _whole(self, text: str, position: int) -> str:
        """Join surrogate pairs: Java writes a character beyond 16 bits as two escapes. Half of one is an error."""
        if text.isascii():
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise self._error(position, "half a character (a surrogate without its other half)") from None

    def _word(self, word: str, position: int) -> Any:
        if word[0] == ":" and len(word) > 1:
            return Keyword(word[1:])
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        if _INTEGER.fullmatch(word):
            return self._integer(word.rstrip("N"), position)
        if _FLOAT.fullmatch(word):
            return float(word.rstrip("M"))
        if word[0] in "#+-0123456789" and len(word) > 1 and word[1:2].isdigit():
            raise self._error(position, f"{word[:20]!r} is not a number")
        return Keyword(word)

    def _integer(self, digits: str, position: int) -> int:
        try:
            return int(digits)
        except ValueError:  # Python bounds the length of a number
            raise self._error(position, f"a number of {len(digits)} digits") from None


def _unescaped(match: re.Match[str]) -> str:
    escaped = match.group(1)
    return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _ESCAPED.get(escaped, escaped)


def _character(name: str) -> str:
    if len(name) == 5 and name[0] == "u":
        return chr(int(name[1:], 16))
    return _CHARACTERS.get(name, name)
