"""Strangers ask for every route of the API and every request of the data listener. S12."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import http_api
from jepsen_like.clients.stranger import heard_of, outcome_of
from jepsen_like.workloads.stranger_requests import OPEN_PATHS, api_doors, data_doors, node_doors
from raftlog.broker.requests.forwarded import split_caller
from raftlog.wire import ErrorResponse, FetchedPartition, FetchResponse, Request, decode_request, encode

ID = b"topic-number-001"
DOORS = api_doors("orders", ID.hex(), "a-cluster")


def test_every_route_is_asked_for_s12() -> None:
    documents = sorted(Path(http_api.__file__).parent.rglob("openapi.json"))
    paths = [item for one in documents for item in json.loads(one.read_text())["paths"].items()]
    routes = {(method.upper(), path) for path, methods in paths for method in methods}
    routes = {route for route in routes if route[0] != "PARAMETERS"}
    asked = {(door.method, door.path.partition("?")[0]) for door in DOORS}

    def is_asked(method: str, path: str) -> bool:
        pattern = re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path))
        return any(known == method and pattern.fullmatch(other) for known, other in asked)

    assert {route for route in routes if route[1] not in OPEN_PATHS and not is_asked(*route)} == set()


def test_every_request_of_the_data_listener_is_asked_for_s12() -> None:
    found: set[type[Any]] = {type(decode_request(door.content)[0]) for door in data_doors(ID, forwarded=False)}
    for door in data_doors(ID, forwarded=True):
        found.add(type(decode_request(split_caller(door.content)[1])[0]))
    assert found == set(get_args(Request))


def test_forwarded_requests_claim_to_be_a_superusers_s12() -> None:
    callers = [split_caller(door.content)[0] for door in node_doors(ID) if "superuser" in door.name]
    assert callers and all(caller is not None and caller.superuser for caller in callers)


def test_an_answer_is_a_refusal_only_if_nothing_of_it_was_granted_s12() -> None:
    def outcome(message: Any, body: bytes = b"") -> str:
        parts: Any = encode(message, [body] if body else ())
        return outcome_of(memoryview(b"".join(map(bytes, parts)))).outcome

    refused, granted = (FetchedPartition(ID, 0, error=code) for code in ("authorization_failed", ""))
    assert outcome(FetchResponse(1, [refused])) == "refused"
    assert outcome(FetchResponse(1, [refused, granted])) == "told"
    assert outcome(FetchResponse(1, [refused]), b"x") == "told"
    assert outcome(ErrorResponse(1, "unauthenticated", "")) == "refused"
    assert outcome(ErrorResponse(1, "unknown_topic", "")) == "told"
    assert outcome(ErrorResponse(1, "shutting_down", "")) == "unavailable"


def test_an_answer_of_the_api_is_told_unless_it_is_refused_or_empty_s12() -> None:
    def outcome(status: int, body: str = "", head: str = "") -> str:
        return heard_of(f"HTTP/1.1 {status} X\r\n{head}\r\n{body}".encode()).outcome

    assert outcome(401, "{}") == outcome(403, '{"code": "authorization_failed"}') == "refused"
    assert outcome(200, '{"topics": []}') == "nothing"
    assert outcome(200, '{"topics": [1]}') == outcome(204) == outcome(404, "{}") == outcome(200, "text") == "told"
    assert outcome(503, '{"code": "overloaded"}') == "unavailable"
    assert outcome(504, '{"code": "request_timed_out"}') == "told"
    assert outcome(200, 'd\r\n{"topics": []\r\n1\r\n}\r\n0\r\n\r\n', "Transfer-Encoding: chunked\r\n") == "nothing"
    assert heard_of(b"").outcome == "silent"
