"""`python -m jepsen_like check` answers any bytes with one line of JSON, and calls no system wrong for a bad file."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like import __main__ as command
from jepsen_like.checkers import linearizability
from jepsen_like.checkers.models import MODELS
from jepsen_like.histories.formats import FORMATS

ALL_MODELS = (*MODELS, "kafka")


def judged(raw: bytes, model: str, kind: str) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    read = io.TextIOWrapper(io.BytesIO(raw))
    apart = contextlib.redirect_stderr(io.StringIO())
    with mock.patch.object(sys, "stdin", read), contextlib.redirect_stdout(out), apart:
        code = command.main(["check", "-", "--model", model, "--format", kind, "--steps", "20000"])
    (line,) = out.getvalue().splitlines()
    told = json.loads(line)
    assert told["valid"] is {0: True, 1: False}.get(code) or (told["valid"] == "unknown" and code in {2, 3})
    return code, told


def edn_pair(f: str, asked: str, answered: str) -> bytes:
    return b"{:process 0 :type :invoke :f :%b :value %b}\n{:process 0 :type :ok :f :%b :value %b}" % (
        f.encode(), asked.encode(), f.encode(), answered.encode(),
    )  # fmt: skip


def line_pair(f: str, asked: Any, answered: Any) -> bytes:
    return b"\n".join(
        json.dumps({"index": 0, "process": 0, "type": kind, "f": f, "value": value}).encode()
        for kind, value in (("invoke", asked), ("ok", answered))
    )


def case(**more: Any) -> bytes:
    one = {"process": 0, "type": "ok", "f": "poll", "value": [["poll", {}]]}
    return json.dumps({"history": [{**one, **more}]}).encode()


@pytest.mark.parametrize(
    ("model", "kind", "raw", "why"),
    [
        ("kafka", "json", case(rebalance_log=5), "operation 0: its rebalance log"),
        ("kafka", "json", case(rebalance_log=[{"keys": 5}]), "operation 0: a rebalance's keys"),
        ("kafka", "json", case(rebalance_log=[{"keys": [[]]}]), "operation 0: a rebalance's keys"),
        ("kafka", "json", case(value=[["poll", {"0": 5}]]), "a list of offsets and values"),
        ("kafka", "json", b'{"options":{"ww_deps":"no"},"history":[]}', "neither true nor false"),
        ("kafka", "edn", edn_pair("send", "[[:send [{}] 1]]", "[[:send [{}] 1]]"), "as a key"),
        ("kafka", "edn", edn_pair("send", "[[:send 1 [1 [{}]]]]", "nil"), "an offset and a value"),
        ("kafka", "jsonl", line_pair("acquire", None, None), "history has no send, poll, txn, but acquire"),
        (
            "kafka",
            "jsonl",
            line_pair("poll", [["poll"]], [["poll", {}]]).replace(b'"value"', b'"rebalanced":[[1]],"value"'),
            "rebalanced[0]",
        ),
        ("mutex", "edn", b"{:process 0 :type :invoke :f :acquire :time 1e400}", "operation 0: its time"),
        ("mutex", "edn", b"{:process true :type :invoke :f :acquire}", "operation 0: its index or its process"),
        ("mutex", "edn", b"{:process 0 :type [] :f :acquire}", "operation 0: its type or its f"),
        ("mutex", "edn", b'"\\ud800"', "half a character"),
        ("cas-register", "jsonl", line_pair("write", {"a": 1}, None), "operation 0, a write"),
        ("cas-register", "jsonl", line_pair("cas", "ab", None), "does not support cas 'ab'"),
        ("cas-register", "edn", edn_pair("read", "nil", "{:a 1}"), "operation 0, a read"),
        ("set", "jsonl", line_pair("add", {}, None), "operation 0, a add"),
        ("set", "jsonl", line_pair("read", None, "abc"), "a set does not support read"),
        ("multi-register", "jsonl", line_pair("write", {"x": {}}, None), "operation 0, a write"),
        ("multi-register", "jsonl", line_pair("txn", [[{}, "x", 1]], None), "a multi-register does not support txn"),
        ("multi-register", "jsonl", line_pair("txn", [["write", {}, 1]], None), "operation 0, a txn"),
        ("kv", "kv-edn", b'{:process 0 :type :invoke :f :put :key {} :value "v"}', "operation 0, a put"),
        ("kv", "kv-edn", b"{:process 0 :type :invoke :f :get}{:process 0 :type :ok :f :get :value 5}", "get returned"),
        ("cas-register", "etcd-log", b"INFO  jepsen.util - " + b"1" * 5000 + b"\t:invoke\t:read\tnil", "5000 digits"),
        ("cas-register", "etcd-log", b"\nINFO  jepsen.util - 1\t:invoke\t:read\t{:a", "line 2, in its value"),
        ("cas-register", "etcd-log", b"hello world", "file has no operation, read as etcd-log"),
    ],
)  # fmt: skip
def test_a_malformed_file_is_named(model: str, kind: str, raw: bytes, why: str) -> None:
    code, told = judged(raw, model, kind)
    assert code == 3
    assert why in told["error"]


@pytest.mark.parametrize("kind", ["jsonl", "edn", "kv-edn", "etcd-log"])
@pytest.mark.parametrize("model", ALL_MODELS)
def test_an_empty_history_gives_no_verdict(model: str, kind: str) -> None:
    for raw in (b"", b"\n\n"):
        code, told = judged(raw, model, kind)
        assert code == 3 and "no operation" in told["error"]


def test_a_history_of_faults_alone_is_possible_for_a_correct_system() -> None:
    faults = b"{:process :nemesis :type :info :f :kill}"
    assert judged(faults, "cas-register", "edn")[0] == 0
    assert judged(faults, "kafka", "edn")[0] == 3


def test_lists_are_values_in_every_format() -> None:
    history = line_pair("write", [1, [2]], None) + b"\n" + line_pair("read", None, [1, [2]])
    assert judged(history, "cas-register", "jsonl")[0] == 0
    assert judged(history.replace(b'"ok", "f": "read", "value": [1, [2]]', b'"ok", "f": "read", "value": [1, [3]]'),
                  "cas-register", "jsonl")[0] == 1  # fmt: skip


@pytest.mark.parametrize("value", ["9" * 40, "[1e400]", "#{1}", '"\\ud83d\\ude00"'])
def test_an_anomaly_is_shown_whatever_its_value(value: str) -> None:
    code, told = judged(edn_pair("read", "nil", value), "cas-register", "edn")
    assert code == 1 and told["anomalies"]["nonlinearizable"]


def test_an_operation_with_a_map_of_any_keys_is_shown() -> None:
    history = edn_pair("write", "{[1 2] 3}", "nil") + edn_pair("read", "nil", "{[1 2] 4}")
    assert judged(history, "multi-register", "edn")[0] == 1


def test_a_checker_that_crashes_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: Any, **__: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(linearizability, "check", crash)
    code, told = judged(line_pair("read", None, 0), "cas-register", "jsonl")
    assert code == 2 and "KeyError('a bug')" in told["error"]


def test_a_reader_that_crashes_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: Any, **__: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(command, "load", crash)
    code, told = judged(b"", "cas-register", "jsonl")
    assert code == 3 and "KeyError('a bug')" in told["error"]


# --- Arbitrary input --------------------------------------------------------------------------------------------------

SCALARS = (
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from([2**70, 1e300, "", "x", "ab", "send", "poll"])
)
MICRO = st.tuples(st.sampled_from(["send", "poll", "read", "write", "r", "w"]), SCALARS, SCALARS).map(list)
VALUES = st.recursive(
    SCALARS | MICRO,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["0", "keys"]), inner, max_size=2),
    max_leaves=6,
)
NAMES = st.sampled_from(
    ["read", "write", "cas", "txn", "acquire", "release", "get", "put", "append", "add", "send", "poll", "assign",
     "subscribe", "crash"]
)  # fmt: skip
USUAL: dict[str, st.SearchStrategy[Any]] = {
    "process": st.integers(0, 2),
    "type": st.sampled_from(["invoke", "ok", "fail", "info"]),
    "f": NAMES,
    "value": VALUES,
}
ODD = st.dictionaries(
    st.sampled_from(["process", "type", "f", "index", "time", "key", "rebalance_log", "rebalanced", "error", "node"]),
    VALUES,
    max_size=1,
)


@st.composite
def operations(draw: st.DrawFn) -> list[Any]:
    """Mostly calls with both ends, so that the checkers are reached; odd members, and values that are no operations."""
    found: list[Any] = []
    for _ in range(draw(st.integers(0, 3))):
        f, process = draw(NAMES), draw(st.integers(0, 2))
        for kind in ("invoke", draw(USUAL["type"])):
            one = {"index": len(found), "process": process, "type": kind, "f": f, "value": draw(VALUES)}
            found.append(one | draw(st.just({}) | ODD))
    return found + draw(st.just([]) | st.lists(VALUES, max_size=1))


def as_edn(value: Any) -> str:
    match value:
        case dict():
            return "{" + " ".join(f":{key} {as_edn(one)}" for key, one in value.items()) + "}"
        case list():
            return "[" + " ".join(map(as_edn, value)) + "]"
        case str():
            return json.dumps(value)
        case _:
            return "nil" if value is None else json.dumps(value)


def as_log(one: Any) -> str:
    if not isinstance(one, dict):
        return as_edn(one)
    kind, f = one.get("type"), one.get("f")
    return f"INFO  jepsen.util - {one.get('process')}\t:{kind}\t:{f}\t{as_edn(one.get('value'))}"


def in_format(kind: str, found: list[Any]) -> bytes:
    match kind:
        case "json":
            return json.dumps({"history": found}).encode()
        case "jsonl":
            return "\n".join(map(json.dumps, found)).encode()
        case "etcd-log":
            return "\n".join(map(as_log, found)).encode()
        case _:
            return "\n".join(map(as_edn, found)).encode()


def answered_well(raw: bytes, model: str, kind: str) -> None:
    code, told = judged(raw, model, kind)
    assert code in {0, 1, 2, 3}
    assert ("error" in told) == (code == 3), told  # malformed input is no crash of the checker
    assert "cannot be read as" not in told.get("error", ""), told  # and is refused with the reason


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=40, deadline=None)
@given(raw=st.binary(max_size=60), model=st.sampled_from(ALL_MODELS))
def test_any_bytes_get_one_line(kind: str, raw: bytes, model: str) -> None:
    answered_well(raw, model, kind)


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=60, deadline=None)
@given(found=operations())
def test_any_values_in_the_places_of_operations_get_one_line(kind: str, found: list[Any]) -> None:
    for model in ALL_MODELS:
        answered_well(in_format(kind, found), model, kind)
