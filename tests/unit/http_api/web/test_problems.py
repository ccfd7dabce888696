"""Every error code has a title and a status; every problem document says the same as the table."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from aiohttp import web

from http_api.web.problems import ApiError, error_member, error_of_http, problem, worst
from raftlog.errors import CODES, InvalidRequest, NotLeader, RaftlogError, error_from_code


def document(response: web.Response) -> dict[str, Any]:
    assert isinstance(response.body, bytes)
    decoded: dict[str, Any] = msgspec.json.decode(response.body)
    return decoded


def test_every_code_has_a_title_of_its_own() -> None:
    titles = [row.title for row in CODES.values()]
    assert all(titles)
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("code", CODES)
def test_a_problem_says_what_the_table_says(code: str) -> None:
    response = problem(error_from_code(code, "the reason"), "r-1")
    row = CODES[code]
    assert response.status == row.status
    assert response.content_type == "application/problem+json"
    assert document(response) == {
        "type": f"urn:raftlog:problem:{code}",
        "title": row.title,
        "status": row.status,
        "detail": "the reason",
        "code": code,
        "retriable": row.retriable,
        "applied": row.applied.value,
        "request_id": "r-1",
    }
    assert response.headers.get("Retry-After") == ("1" if row.retriable else None)
    assert response.headers["X-Request-Id"] == "r-1"


def test_members_and_headers_of_their_own() -> None:
    assert document(problem(NotLeader("moved", 4), "r"))["leader"] == 4
    assert "leader" not in document(problem(NotLeader("moved"), "r"))
    assert error_member(NotLeader("moved", 4)).leader == 4
    response = problem(ApiError("not_found", "x", members={"more": [1]}, headers={"Allow": "GET"}), "r")
    assert document(response)["more"] == [1]
    assert response.headers["Allow"] == "GET"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (web.HTTPNotFound(), "not_found"),
        (web.HTTPMethodNotAllowed("PUT", ["GET", "POST"]), "method_not_allowed"),
        (web.HTTPRequestEntityTooLarge(1, 2), "body_too_large"),
        (web.HTTPUnsupportedMediaType(), "unsupported_media_type"),
        (web.HTTPNotAcceptable(), "not_acceptable"),
        (web.HTTPRequestTimeout(), "slow_request"),
        (web.HTTPBadRequest(), "invalid_request"),
        (web.HTTPExpectationFailed(), "invalid_request"),
        (web.HTTPInternalServerError(), "internal_error"),
        (web.HTTPServiceUnavailable(), "internal_error"),
    ],
)
def test_what_aiohttp_refuses_has_a_code(error: web.HTTPException, code: str) -> None:
    assert error_of_http(error, "/path").code == code


def test_a_refused_method_is_told_the_others() -> None:
    refused = error_of_http(web.HTTPMethodNotAllowed("PUT", ["POST", "GET"]), "/v1/topics")
    assert problem(refused, "r").headers["Allow"] == "GET, POST"


def test_the_worst_of_several_is_told() -> None:
    retriable = error_from_code("overloaded", "")
    unknown = error_from_code("leadership_lost", "")
    final = InvalidRequest("corrupt_batch", "")
    broken = RaftlogError("internal_error", "")
    assert worst([retriable, unknown, final]) is final
    assert worst([retriable, unknown]) is unknown
    assert worst([retriable, broken]) is broken
    assert worst([retriable]) is retriable
