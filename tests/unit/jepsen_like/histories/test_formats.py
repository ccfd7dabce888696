"""Histories: both ends of a call, our own format, and those of others."""

from __future__ import annotations

import io

import pytest

from jepsen_like.histories.formats import load
from jepsen_like.histories.history import Operation, calls, read, write
from raftlog.errors import InvalidRequest


def test_a_history_survives_writing_and_reading() -> None:
    operations = [
        Operation(0, 1, "invoke", "send", [["send", "0", 7]], time=5, node="n1"),
        Operation(1, "nemesis", "info", "kill", "n2", time=6),
        Operation(2, 1, "info", "send", [["send", "0", 7]], time=9, error="timed out", rebalanced=("0",)),
    ]
    file = io.BytesIO()
    write(file, operations)
    assert b'"type":"invoke"' in file.getvalue()
    assert list(read(file.getvalue().splitlines())) == operations


@pytest.mark.parametrize("line", [b"{}", b"[1]", b'{"index":0,"process":1,"type":"done","f":"x"}', b"\xff", b"{"])
def test_a_line_that_is_no_operation_is_named(line: bytes) -> None:
    with pytest.raises(InvalidRequest) as raised:
        list(read([b"", line]))
    assert raised.value.detail.startswith("line 2 ")


def test_calls_have_both_ends() -> None:
    history = [
        Operation(0, 1, "invoke", "read"),
        Operation(1, 2, "invoke", "write", 3),
        Operation(2, "nemesis", "info", "kill"),
        Operation(3, 1, "ok", "read", 3),
        Operation(4, 2, "info", "write", 3),
        Operation(5, 3, "invoke", "read"),
        Operation(6, 3, "invoke", "read"),  # it crashed, and was restarted
        Operation(7, 3, "fail", "read"),
    ]
    found = [(call.called, call.returned, call.kind) for call in calls(history)]
    assert found == [(0, 3, "ok"), (1, 8, "info"), (5, 8, "info"), (6, 7, "fail")]


@pytest.mark.parametrize(
    "history",
    [
        [Operation(0, 1, "ok", "read")],
        [Operation(0, 1, "invoke", "read"), Operation(1, 1, "ok", "write")],
        [Operation(0, 1, "invoke", "read"), Operation(1, 1, "ok", "read"), Operation(2, 1, "ok", "read")],
    ],
)
def test_a_completion_of_nothing_is_refused(history: list[Operation]) -> None:
    with pytest.raises(InvalidRequest):
        calls(history)


def test_a_text_log() -> None:
    raw = (
        b"INFO  jepsen.util - 0\t:invoke\t:cas\t[1 2]\n"
        b"INFO  jepsen.nemesis - cut\n"
        b"INFO  jepsen.util - 1\t:invoke\t:read\tnil\n"
        b"INFO  jepsen.util - 0\t:fail\t:cas\t[1 2]\n"
        b"INFO  jepsen.util - 1\t:fail\t:read\t:timed-out\n"
        b"INFO  jepsen.util - 2\t:info\t:write\t:timed-out\n"
    )
    operations = load(raw, "etcd-log").operations
    shown = [(one.process, one.kind, one.f, one.value) for one in operations]
    assert shown == [
        (0, "invoke", "cas", (1, 2)),
        (1, "invoke", "read", None),
        (0, "ok", "cas", ("failed", (1, 2))),
        (1, "fail", "read", None),
        (2, "info", "write", None),
    ]


def test_a_text_log_whose_tabs_were_expanded() -> None:
    (one,) = load(b"INFO  jepsen.util - 3   :invoke :cas    [1 2]\n", "etcd-log").operations
    assert (one.process, one.kind, one.f, one.value) == (3, "invoke", "cas", (1, 2))


@pytest.mark.parametrize("text", ["[{0}\n {1}]", "({0} ; and\n {1})", "{0}\n{1}"])
def test_edn_in_a_vector_a_list_or_by_itself(text: str) -> None:
    maps = "{:type :invoke, :f :read, :process 0}", "{:type :ok, :f :read, :process 0, :value 4, :index 9}"
    operations = load(text.replace("{0}", maps[0]).replace("{1}", maps[1]).encode(), "edn").operations
    assert [(one.index, one.kind, one.value) for one in operations] == [(0, "invoke", None), (9, "ok", 4)]


def test_keys_and_values() -> None:
    (one,) = load(b'{:process 3, :type :ok, :f :get, :key "k", :value "v"}', "kv-edn").operations
    assert one.value == ("k", "v")


CASES = b'{"cases":[{"id":"a","options":{"ww_deps":true},"history":[]},{"id":"b","history":[%b]}]}'
CASE = b'{"index":4,"process":0,"type":"ok","f":"poll","value":[["poll",{}]],"rebalance_log":[{"keys":["x"]}]}'


def test_a_case_is_picked_by_its_id() -> None:
    assert load(CASES % CASE, "json", "a").options == {"ww_deps": True}
    (one,) = load(CASES % CASE, "json", "b").operations
    assert one.rebalanced == ("x",)
    assert load(b'{"history":[%b]}' % CASE, "json").operations == [one]


@pytest.mark.parametrize(
    ("raw", "kind", "case"),
    [
        (CASES % CASE, "json", "c"), (CASES % CASE, "json", ""), (b"{", "json", ""), (b"[]", "json", ""),
        (b'{"history":[1]}', "json", ""), (b'{"history":[],"options":1}', "json", ""), (b"", "text", ""),
        (b"", "edn", "a"), (b"\xff", "edn", ""), (b"[1]", "edn", ""), (b"{:process {} :type :ok :f :x}", "edn", ""),
        (b"{:process 1 :type :done :f :x}", "edn", ""), (b"INFO  jepsen.util - 0\t:ok\t:read\t1 2", "etcd-log", ""),
    ],
)  # fmt: skip
def test_an_inconsistent_history_is_refused(raw: bytes, kind: str, case: str) -> None:
    with pytest.raises(InvalidRequest):
        load(raw, kind, case)
