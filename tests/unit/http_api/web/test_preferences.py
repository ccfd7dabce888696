"""`Prefer: wait`: what can be read is applied, and nothing else is an error."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import make_mocked_request

from http_api.web.preferences import applied, wait_ms


@pytest.mark.parametrize(
    ("header", "wait"),
    [
        ("wait=5", 5000),
        ("respond-async, WAIT = 10", 10000),
        ('wait="7"; x', 7000),
        ("wait=0", 0),
        ("wait=999999", 60000),
        ("wait=-1", None),
        ("wait=1.5", None),
        ("wait", None),
        ("waiting=3", None),
        ("", None),
    ],
)
def test_a_preferred_wait(header: str, wait: int | None) -> None:
    assert wait_ms(make_mocked_request("GET", "/", headers={"Prefer": header}), 60000) == wait


def test_what_was_applied_is_told() -> None:
    assert applied(5000) == {"Preference-Applied": "wait=5"}
    assert applied(None) == {}
