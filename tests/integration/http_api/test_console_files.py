"""The files of the console: served to everybody, without data, under a strict Content-Security-Policy (S12)."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import AsyncIterator
from importlib import resources

import pytest
import pytest_asyncio

from http_api.app import CONSOLE_ROUTES
from http_api.console.files import console_files
from tests.support.client.fake_broker import FakeBroker
from tests.support.client.secured_broker import SecuredBroker
from tests.support.http.api_client import Api, running_api

pytestmark = pytest.mark.integration

OWN = sorted(name for name in console_files() if not name.startswith("uPlot"))
IMPORT = re.compile(r'^import [^;]*?from "\./([^"]+)";$', re.MULTILINE)


@pytest_asyncio.fixture
async def api() -> AsyncIterator[Api]:
    async with running_api(SecuredBroker()) as running:
        yield running


async def test_every_file_is_served_without_a_credential(api: Api) -> None:
    for name, file in console_files().items():
        answer = await api.get(f"/console/{name}", headers={"Accept-Encoding": "identity"})
        assert (answer.status, answer.body) == (200, file.content), name
        assert answer.headers["Content-Type"] == f"{file.media_type}; charset=utf-8"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert (await api.get("/console/")).body == console_files()["index.html"].content


async def test_a_wrong_credential_hides_no_file_and_opens_no_data(api: Api) -> None:
    wrong = {"Authorization": "Bearer rlt_abcdefghijkl_" + "A" * 43}
    assert (await api.get("/console/", headers=wrong)).status == 200
    (await api.get("/v1/topics", headers=wrong)).problem("unauthenticated")


async def test_the_page_is_reached_from_its_name_without_a_slash(api: Api) -> None:
    answer = await api.get("/console", allow_redirects=False)
    assert (answer.status, answer.headers["Location"]) == (308, "console/")


async def test_names_that_are_no_file_are_not_found(api: Api) -> None:
    for name in ("nothing.js", "__init__.py", "files.py", "..%2ffiles.py", "%2e%2e%2fapp.py", "%00", "index.html%00"):
        (await api.get(f"/console/{name}")).problem("not_found")
    (await api.get("/console/static/app.js")).problem("unauthenticated")
    (await api.get("/console/?file=app.js")).problem("invalid_request")
    (await api.post("/console/", {})).problem("unauthenticated")


async def test_other_hosts_and_pages_get_nothing(api: Api) -> None:
    (await api.get("/console/", headers={"Host": "evil.example"})).problem("host_not_allowed")
    (await api.get("/console/", headers={"Origin": "https://evil.example"})).problem("origin_not_allowed")


async def test_the_policy_allows_nothing_from_elsewhere_and_nothing_inline(api: Api) -> None:
    for path in ("/console", "/console/", "/console/app.js"):
        headers = (await api.get(path, allow_redirects=False)).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == "'self'"
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["object-src"] == "'none'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert not any(word in headers["Content-Security-Policy"] for word in ("unsafe", "http", "data:", "*"))
        assert headers["X-Frame-Options"] == "DENY"
        assert "Set-Cookie" not in headers


async def test_a_file_that_the_browser_has_is_not_sent_again(api: Api) -> None:
    first = await api.get("/console/app.js")
    again = await api.get("/console/app.js", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.body, again.headers["Cache-Control"]) == (304, b"", "no-cache")


async def test_files_are_compressed_for_those_who_accept_it(api: Api) -> None:
    answer = await api.get("/console/uPlot.esm.js", headers={"Accept-Encoding": "gzip"}, auto_decompress=False)
    assert answer.headers["Content-Encoding"] == "gzip" and answer.headers["Vary"] == "Accept-Encoding"
    assert gzip.decompress(answer.body) == console_files()["uPlot.esm.js"].content
    assert len(answer.body) < 50_000


async def test_the_console_is_there_before_the_node_knows_its_cluster() -> None:
    broker = FakeBroker()
    broker.knows_cluster = False
    async with running_api(broker) as api:
        assert (await api.get("/console/")).status == 200
        broker.knows_cluster = True


async def test_head_has_the_length_and_no_content(api: Api) -> None:
    answer = await api.call("HEAD", "/console/app.js", headers={"Accept-Encoding": "identity"})
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["Content-Length"]) == len(console_files()["app.js"].content)


def test_the_routes_only_read() -> None:
    assert {method for method, _, _ in CONSOLE_ROUTES} == {"GET", "HEAD"}


def test_every_module_that_is_imported_is_there_and_every_module_is_imported() -> None:
    imported = {"app.js"}
    for name in OWN:
        imported.update(IMPORT.findall(console_files()[name].content.decode()))
    assert imported == {name for name in console_files() if name.endswith(".js")}


@pytest.mark.parametrize("name", OWN)
def test_a_file_makes_no_markup_from_text_and_names_no_other_host(name: str) -> None:
    text = console_files()[name].content.decode()
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "style="):
        assert word not in text, word
    hosts = set(re.findall(r"https?://[^\s\"'`]+", text)) - {"http://www.w3.org/2000/svg"}
    assert not hosts
    assert not re.search(r"<script(?! type=\"module\" src=)|\son[a-z]+=\"", text)


def test_the_library_for_plots_is_whole_and_names_its_licence() -> None:
    script = console_files()["uPlot.esm.js"].content.decode()
    assert "v1.6.32" in script and "MIT Licensed" in script
    assert "MIT License" in console_files()["uPlot.LICENSE.txt"].content.decode()


def test_the_library_for_plots_is_unchanged() -> None:
    told = (resources.files("http_api") / "console" / "static" / "uPlot.README.md").read_text()
    sums = dict(re.findall(r"^\| `(uPlot\.[^`]+)` \| [^|]+ \| `([0-9a-f]{64})` \|$", told, re.MULTILINE))
    vendored = {name for name in console_files() if name.startswith("uPlot")}
    assert {name: hashlib.sha256(console_files()[name].content).hexdigest() for name in vendored} == sums
