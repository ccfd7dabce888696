"""W3C Trace Context: what is valid, what is left out, and how records carry it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.trace_context import MAX_TRACESTATE, TraceContext, parse, trace_of, with_trace

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"


def test_the_parts_of_a_context() -> None:
    context = parse(VALID, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7")
    assert context is not None
    assert (context.trace_id, context.span_id, context.sampled) == (TRACE, SPAN, True)
    assert context.headers == (
        ("traceparent", VALID.encode()),
        ("tracestate", b"congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"),
    )
    unsampled = parse(f"00-{TRACE}-{SPAN}-00")
    assert (
        unsampled is not None
        and not unsampled.sampled
        and unsampled.headers == (("traceparent", f"00-{TRACE}-{SPAN}-00".encode()),)
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01more",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00_{TRACE}-{SPAN}-01",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
    ],
)
def test_what_is_malformed_is_no_trace(text: str) -> None:
    assert parse(text) is None


def test_of_a_later_version_is_kept_what_this_one_knows() -> None:
    assert parse(f"cc-{TRACE}-{SPAN}-ff-what-the-future-has") == TraceContext(VALID)
    assert parse(f"01-{TRACE}-{SPAN}-02") == TraceContext(f"00-{TRACE}-{SPAN}-00")


@pytest.mark.parametrize("state", ["x" * (MAX_TRACESTATE + 1), "a=\x00", "a=\xe9", "a=b\nc=d"])
def test_a_state_that_is_invalid_is_left_out(state: str) -> None:
    assert parse(VALID, state) == TraceContext(VALID)


def test_a_record_that_has_a_trace_keeps_it() -> None:
    context, other = TraceContext(VALID, "a=b"), f"00-{'1' * 32}-{SPAN}-00".encode()
    assert with_trace((), context) is not with_trace([], TraceContext(VALID))
    assert with_trace([("h", b"1")], context) == [("h", b"1"), ("traceparent", VALID.encode()), ("tracestate", b"a=b")]
    own = [("traceparent", other), ("tracestate", b"c=d")]
    assert with_trace(own, context) == own
    assert with_trace([("tracestate", b"c=d")], context) == [*context.headers]


def test_the_trace_of_a_record() -> None:
    assert trace_of(TraceContext(VALID, "a=b").headers) == TraceContext(VALID, "a=b")
    assert trace_of([("traceparent", b"\xff"), ("traceparent", VALID.encode())]) is None, "the first counts"
    assert trace_of([("traceparent", None)]) is trace_of([]) is None


@given(st.text(), st.text(), st.lists(st.tuples(st.text() | st.just("traceparent"), st.none() | st.binary())))
def test_any_text_and_any_headers_are_a_context_or_none(
    parent: str, state: str, headers: list[tuple[str, bytes | None]]
) -> None:
    for context in (parse(parent, state), trace_of(headers)):
        assert context is None or trace_of(context.headers) == context


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=MAX_TRACESTATE))
def test_a_context_survives_its_record(state: str) -> None:
    context = parse(VALID, state)
    assert context is not None and trace_of(context.headers) == context
