"""The address of the API as a client behind proxies sees it."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import make_mocked_request

from http_api.web.origins import base_url


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, "http://node:9640"),
        ({"Forwarded": "for=1.2.3.4;proto=https;host=log.example.com"}, "https://log.example.com"),
        ({"Forwarded": 'proto=https; host="log.example.com:8443", for=5.6.7.8;host=inner'}, "https://log.example.com:8443"),
        ({"Forwarded": "Host=log.example.com"}, "http://log.example.com"),
        ({"Forwarded": 'host="[2001:db8::1]:80"'}, "http://[2001:db8::1]:80"),
        ({"X-Forwarded-Proto": "https", "X-Forwarded-Host": "log.example.com"}, "https://log.example.com"),
        ({"X-Forwarded-Host": "outer.example.com, inner"}, "http://outer.example.com"),
        ({"X-Forwarded-Host": "log.example.com", "X-Forwarded-Port": "8080"}, "http://log.example.com:8080"),
        ({"X-Forwarded-Host": "log.example.com:1", "X-Forwarded-Port": "8080"}, "http://log.example.com:1"),
        ({"X-Forwarded-Prefix": "/log/api/"}, "http://node:9640/log/api"),
        ({"Forwarded": "host=a.example.com", "X-Forwarded-Host": "b.example.com"}, "http://a.example.com"),
        ({"X-Forwarded-Host": 'evil"><script>'}, "http://node:9640"),
        ({"X-Forwarded-Proto": "javascript"}, "http://node:9640"),
        ({"X-Forwarded-Port": "x"}, "http://node:9640"),
        ({"X-Forwarded-Prefix": "//evil.example.com"}, "http://node:9640"),
        ({"Forwarded": ";;;===,,,"}, "http://node:9640"),
    ],
)  # fmt: skip
def test_the_address_is_that_of_the_outermost_proxy(headers: dict[str, str], expected: str) -> None:
    assert base_url(make_mocked_request("GET", "/", headers={"Host": "node:9640", **headers})) == expected
