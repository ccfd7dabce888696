"""Readers for the history formats of other projects, so that their corpora can test our checkers.

| format | a line, or a file | origin |
|---|---|---|
| `jsonl` | an operation in our own format | `history.py` |
| `etcd-log` | `INFO  jepsen.util - 3\t:invoke\t:cas\t[1 2]` | Jepsen's text log, of its etcd test |
| `edn` | a vector of operation maps | Knossos |
| `kv-edn` | one operation map per line, keys and values are text | Porcupine |
| `json` | `{"history": [...], "options": {...}}`, or `{"cases": [...]}`, one picked by id | cases of a log |
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from raftlog.errors import InvalidRequest

from . import edn
from .history import Kind, Operation, read

MAX_FILE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Loaded:
    """A history, and the options that its file gives for checking it."""

    operations: list[Operation]
    options: dict[str, Any] = field(default_factory=dict)


def load(raw: bytes, kind: str, case: str = "") -> Loaded:
    """Return the history in a file's bytes; `case` picks one of several. Raises `InvalidRequest`."""
    if kind not in FORMATS:
        raise InvalidRequest("invalid_request", f"unknown format {kind!r}; formats: {', '.join(FORMATS)}")
    if case and kind != "json":
        raise InvalidRequest("invalid_request", f"format {kind} has no cases")
    if kind == "jsonl":
        return Loaded(list(read(raw.splitlines())))
    if kind == "json":
        return _json_case(raw, case)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("invalid_request", f"the file is not UTF-8: {error}") from None
    return Loaded(list(_PARSERS[kind](text)))


# --- Jepsen's text log ------------------------------------------------------------------------------------------------

# Separated by tabs, or by blanks if a tool expanded them.
_LINE = re.compile(r"INFO\s+jepsen\.util\s+-\s+(\d+)\s+:(invoke|ok|fail|info)\s+:(\w+)\s+(.*)")
_TIMED_OUT = ":timed-out"
PROCESS_DIGITS_MAX = 18


def _etcd_log(text: str) -> Iterator[Operation]:
    index = 0
    for number, line in enumerate(text.splitlines(), start=1):
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            continue  # the nemesis, and other log lines
        if len(match[1]) > PROCESS_DIGITS_MAX:
            raise InvalidRequest("invalid_request", f"line {number}: a process of {len(match[1])} digits")
        process, kind, f, shown = int(match[1]), _kind(match[2]), match[3], match[4]
        value = None if shown == _TIMED_OUT else _one(shown, number)
        if kind == "fail" and f == "cas":
            yield Operation(index, process, "ok", "cas", ("failed", value))
        else:
            yield Operation(index, process, kind, f, value, error="timed-out" if shown == _TIMED_OUT else None)
        index += 1


def _one(text: str, line: int) -> Any:
    try:
        values = edn.read_all(text)
    except InvalidRequest as error:
        raise InvalidRequest("invalid_request", f"line {line}, in its value: {error.detail}") from None
    if len(values) != 1:
        raise InvalidRequest("invalid_request", f"line {line}: {text[:40]!r} is not one value")
    return values[0]


# --- EDN --------------------------------------------------------------------------------------------------------------


def _edn(text: str) -> Iterator[Operation]:
    values = edn.read_all(text)
    if len(values) == 1 and isinstance(values[0], tuple):
        values = list(values[0])
    for position, value in enumerate(values):
        yield _from_map(position, value)


def _kv_edn(text: str) -> Iterator[Operation]:
    for position, value in enumerate(edn.read_all(text)):
        operation = _from_map(position, value)
        yield msgspec.structs.replace(operation, value=(value.get("key"), operation.value))


def _from_map(position: int, value: Any) -> Operation:
    if not isinstance(value, dict) or "type" not in value or "process" not in value or "f" not in value:
        raise InvalidRequest("invalid_request", f"operation {position} is not a map with :process, :type and :f")
    process, index, time = value["process"], value.get("index", position), value.get("time", 0)
    if not _is_number(index) or not (isinstance(process, str) or _is_number(process)):
        raise InvalidRequest("invalid_request", f"operation {position}: its index or its process is not a number")
    if not (_is_number(time) or (isinstance(time, float) and math.isfinite(time))):
        raise InvalidRequest("invalid_request", f"operation {position}: its time is not a number of nanoseconds")
    if not isinstance(value["type"], str) or not isinstance(value["f"], str):
        raise InvalidRequest("invalid_request", f"operation {position}: its type or its f is not a name")
    try:
        kind = _kind(value["type"])
    except InvalidRequest as error:
        raise InvalidRequest("invalid_request", f"operation {position}: its type: {error.detail}") from None
    return Operation(index, process, kind, str(value["f"]), value.get("value"), int(time), error=value.get("error"))


def _is_number(value: Any) -> bool:
    """True counts as a number in Python, but not here."""
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(text: str) -> Kind:
    match text:
        case "invoke" | "ok" | "fail" | "info":
            return text
        case _:
            raise InvalidRequest("invalid_request", f"{text[:40]!r} is not invoke, ok, fail or info")


# --- Cases of a log ---------------------------------------------------------------------------------------------------


def _json_case(raw: bytes, case: str) -> Loaded:
    try:
        decoded = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidRequest("invalid_request", f"the file is not JSON: {error}") from None
    if isinstance(decoded, dict) and "cases" in decoded:
        decoded = _pick(decoded["cases"], case)
    if not isinstance(decoded, dict) or not isinstance(decoded.get("history"), list):
        raise InvalidRequest("invalid_request", "the file has no `history`")
    options = decoded.get("options") or {}
    if not isinstance(options, dict):
        raise InvalidRequest("invalid_request", "its `options` are not an object")
    if not isinstance(options.get("ww_deps", False), bool):
        raise InvalidRequest("invalid_request", "its option `ww_deps` is neither true nor false")
    operations = [_from_object(position, one) for position, one in enumerate(decoded["history"])]
    return Loaded(operations, options)


def _pick(cases: Any, case: str) -> Any:
    known = [one for one in cases if isinstance(one, dict)] if isinstance(cases, list) else []
    for one in known:
        if one.get("id") == case:
            return one
    raise InvalidRequest("invalid_request", f"case {case!r} is not among the file's {len(known)} cases: give an id")


def _from_object(position: int, value: Any) -> Operation:
    if not isinstance(value, dict):
        raise InvalidRequest("invalid_request", f"operation {position} is not an object")
    return msgspec.structs.replace(_from_map(position, value), rebalanced=_rebalanced(position, value))


def _rebalanced(position: int, value: dict[str, Any]) -> tuple[int | str, ...]:
    rebalances = value.get("rebalance_log") or value.get("rebalance-log") or []
    if not isinstance(rebalances, list) or not all(isinstance(one, dict) for one in rebalances):
        raise InvalidRequest("invalid_request", f"operation {position}: its rebalance log is not a list of objects")
    keys: list[int | str] = []
    for one in rebalances:
        named = one.get("keys") or []
        if not isinstance(named, list) or not all(isinstance(key, int | str) for key in named):
            raise InvalidRequest("invalid_request", f"operation {position}: a rebalance's keys are not a list of names")
        keys += named
    return tuple(keys)


_PARSERS: dict[str, Callable[[str], Iterator[Operation]]] = {"etcd-log": _etcd_log, "edn": _edn, "kv-edn": _kv_edn}
FORMATS = ("jsonl", *_PARSERS, "json")
