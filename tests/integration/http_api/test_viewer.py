"""The pages that show the OpenAPI documents: served to everybody, from the node alone, under a strict policy (S12)."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
from collections.abc import AsyncIterator
from importlib import resources

import pytest
import pytest_asyncio

from http_api.app import VIEWER_ROUTES
from http_api.viewer.files import viewer_files
from tests.support.client.fake_broker import FakeBroker
from tests.support.client.secured_broker import SecuredBroker
from tests.support.http.api_client import Api, running_api

pytestmark = pytest.mark.integration

OWN = sorted(name for name in viewer_files() if not name.startswith("swagger-ui"))
VENDORED = sorted(set(viewer_files()) - set(OWN))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest_asyncio.fixture
async def api() -> AsyncIterator[Api]:
    async with running_api(SecuredBroker()) as running:
        yield running


async def test_every_file_is_served_without_a_credential(api: Api) -> None:
    for name, file in viewer_files().items():
        for encoding in ("identity", "gzip"):
            answer = await api.get(f"/docs/{name}", headers={"Accept-Encoding": encoding}, auto_decompress=False)
            assert answer.status == 200, name
            is_compressed = answer.headers.get("Content-Encoding") == "gzip"
            assert (gzip.decompress(answer.body) if is_compressed else answer.body) == file.content, name
            assert answer.headers["Content-Type"] == f"{file.media_type}; charset=utf-8"
    assert (await api.get("/docs/")).body == viewer_files()["index.html"].content
    told = await api.get("/docs", allow_redirects=False)
    assert (told.status, told.headers["Location"]) == (308, "docs/")


async def test_names_that_are_no_file_are_not_found(api: Api) -> None:
    for name in ("nothing.js", "files.py", "..%2ffiles.py", "swagger-ui-bundle.js.gz", "swagger-ui.README.md", "%00"):
        (await api.get(f"/docs/{name}")).problem("not_found")
    (await api.post("/docs/", {})).problem("unauthenticated")
    (await api.get("/docs/", headers={"Host": "evil.example"})).problem("host_not_allowed")


async def test_the_policy_allows_nothing_inline_and_nothing_from_elsewhere(api: Api) -> None:
    for path in ("/docs", "/docs/", "/docs/rest-proxy.html", "/docs/viewer.js"):
        headers = (await api.get(path, allow_redirects=False)).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
        assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert not any(word in headers["Content-Security-Policy"] for word in ("unsafe", "http", "*"))


async def test_a_file_that_the_browser_has_is_not_sent_again(api: Api) -> None:
    first = await api.get("/docs/swagger-ui-bundle.js")
    again = await api.get("/docs/swagger-ui-bundle.js", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")


def test_the_routes_only_read() -> None:
    assert {method for method, _, _ in VIEWER_ROUTES} == {"GET", "HEAD"}


@pytest.mark.parametrize("name", OWN)
def test_an_own_file_makes_no_markup_from_text_and_names_no_other_host(name: str) -> None:
    text = viewer_files()[name].content.decode()
    for word in ("innerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "style="):
        assert word not in text, word
    assert not set(re.findall(r"https?://[^\s\"'`]+", text)) - {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<script(?! src=)|\son[a-z]+=\"", text)


def test_swagger_ui_is_whole_unchanged_and_names_its_licence() -> None:
    told = (resources.files("http_api") / "viewer" / "static" / "swagger-ui.README.md").read_text()
    sums = dict(re.findall(r"^\| `(swagger-ui[^`]+)` \| [^|]+ \| `([0-9a-f]{64})` \|$", told, re.MULTILINE))
    assert {name: hashlib.sha256(viewer_files()[name].content).hexdigest() for name in VENDORED} == sums
    assert b"Apache License" in viewer_files()["swagger-ui.LICENSE.txt"].content
    assert all(len(viewer_files()[name].compressed or b"") < 500_000 for name in VENDORED), "moderate in size"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
async def test_a_browser_shows_the_documents_and_breaks_no_policy() -> None:
    playwright = pytest.importorskip("playwright.async_api")
    async with running_api(FakeBroker()) as api, playwright.async_playwright() as running:
        browser = await running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page()
        errors: list[str] = []
        asked: list[str] = []
        page.on("console", lambda one: errors.append(one.text) if one.type == "error" else None)
        page.on("pageerror", lambda one: errors.append(str(one)))
        page.on("request", lambda one: asked.append(one.url))
        base = f"http://127.0.0.1:{api.port}/"
        for name, operation in (("", "/v1/topics/{topic}/records"), ("rest-proxy.html", "/consumers/{group}")):
            await page.goto(f"{base}docs/{name}")
            await page.locator(f'[data-path="{operation}"]').first.wait_for()
        await browser.close()
    assert errors == []
    assert all(url.startswith((base, "data:")) for url in asked), "the node alone is asked"


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
async def test_a_browser_asks_for_a_token_where_the_node_does() -> None:
    playwright = pytest.importorskip("playwright.async_api")
    broker = SecuredBroker()
    token = (await broker.user("alice", superuser=True))["Authorization"].removeprefix("Bearer ")
    async with running_api(broker) as api, playwright.async_playwright() as running:
        browser = await running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = await browser.new_page()
        await page.goto(f"http://127.0.0.1:{api.port}/docs/")
        await page.get_by_label("Token").fill(token)
        await page.get_by_role("button", name="Sign in").click()
        await page.locator('[data-path="/v1/topics/{topic}/records"]').first.wait_for()
        assert await page.locator("#sign-in").is_hidden()
        await browser.close()
