"""Which hosts and origins are allowed, and which media type and encoding an answer has."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import make_mocked_request

from http_api.web.compression import accepts_gzip
from http_api.web.hosts import HostPolicy, host_name
from http_api.web.negotiation import negotiate
from raftlog.errors import InvalidRequest

POLICY = HostPolicy.of(["node1.example.org:9640", "10.0.0.5", "::5", "[2001:DB8:0::7]:80"], ["https://console.example"])


@pytest.mark.parametrize(
    "authority",
    [
        "localhost",
        "localhost:9640",
        "LOCALHOST.",
        "a.localhost:1",
        "127.0.0.1",
        "127.8.9.1:80",
        "[::1]:9640",
        "[0:0:0:0:0:0:0:1]",
        "node1.example.org",
        "Node1.Example.ORG:1234",
        "node1.example.org.",
        "10.0.0.5:9640",
        "[::5]:1",
        "[2001:db8::7]",
    ],
)
def test_names_of_the_node_are_allowed(authority: str) -> None:
    assert POLICY.allows_host(authority)


@pytest.mark.parametrize(
    "authority",
    [
        "",
        "evil.example",
        "node1.example.org.evil.example",
        "evilnode1.example.org",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "notlocalhost",
        "10.0.0.6",
        "128.0.0.1",
        "[::2]",
        "localhost:port",
        "localhost:1:2",
        "localhost/",
        "user@localhost",
        "localhost evil",
        "[::1",
        "::1",
        ".",
        "2130706433",
        "0x7f.1",
    ],
)
def test_other_names_are_not(authority: str) -> None:
    assert not POLICY.allows_host(authority)


def test_a_name_is_read_without_port_case_and_final_dot() -> None:
    assert host_name("Some-Host.example.:80") == "some-host.example"
    assert host_name("[FE80:0::1]") == "fe80::1"


@pytest.mark.parametrize("text", ["two words", "http://x", "", "a/b"])
def test_a_setting_that_is_no_host_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a host name"):
        HostPolicy.of([text], [])


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://localhost:9640", True),
        ("HTTPS://LOCALHOST:9640", True),
        ("https://console.example", True),
        ("http://localhost:3000", False),
        ("http://localhost", False),
        ("http://console.example", False),
        ("https://console.example:444", False),
        ("https://console.example.evil", False),
        ("http://evil.example", False),
        ("null", False),
        ("", False),
        ("localhost:9640", False),
    ],
)
def test_an_origin_is_this_place_or_an_allowed_one(origin: str, allowed: bool) -> None:
    assert POLICY.allows_origin(origin, "localhost:9640") is allowed


OFFERED = ("application/json", "application/x-ndjson")


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (None, 0),
        ("", 0),
        ("*/*", 0),
        ("application/*", 0),
        ("application/json", 0),
        ("application/x-ndjson", 1),
        ("Application/X-NDJSON; q=1", 1),
        ("application/json;q=0.5, application/x-ndjson", 1),
        ("text/html, */*;q=0.1", 0),
        ("*/*, application/json;q=0", 1),
        ("application/x-ndjson;q=oops, application/json;q=0.1", 0),
        (",,application/x-ndjson,", 1),
    ],
)
def test_the_media_type_that_accept_likes_best(accept: str | None, chosen: int) -> None:
    request = make_mocked_request("GET", "/", headers={} if accept is None else {"Accept": accept})
    assert negotiate(request, OFFERED) == OFFERED[chosen]


@pytest.mark.parametrize("accept", ["text/html", "application/json;q=0", "image/*", "nonsense", ";", "*/*;q=0"])
def test_what_cannot_be_given_is_refused(accept: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        negotiate(make_mocked_request("GET", "/", headers={"Accept": accept}), OFFERED)
    assert caught.value.code == "not_acceptable"


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [("gzip", True), ("br, GZIP;q=0.5", True), ("", False), ("gzip;q=0", False), ("gzip; q=0.0", False), ("*", False)],
)
def test_gzip_is_used_when_it_is_asked_for(accept: str, wanted: bool) -> None:
    assert accepts_gzip(accept) is wanted
