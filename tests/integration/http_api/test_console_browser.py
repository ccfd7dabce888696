"""The console in headless Chromium: each page on a desktop and a phone, light and dark, against a running cluster.

Skipped without Chromium or Playwright. `RAFTLOG_SCREENSHOTS` names a folder for the screenshots.
"""

from __future__ import annotations

import base64
import math
import os
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftlog.broker.plots.columns import NODE_SERIES, Columns
from raftlog.broker.plots.ring import Ring
from raftlog.broker.plots.rows import SLOT_MS, encode_row
from raftlog.cli.nodes.local_cluster import LocalCluster
from raftlog.system.disk import LocalDisk
from tests.support.clusters.cluster import PATIENCE_S, running_cluster

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.integration, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")]

AXE_VERSION = "4.14.1"
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}
PAGES = {
    "overview": ("", "Nodes"),
    "topics": ("topics", "orders"),
    "topic": ("topics/orders", "High watermark"),
    "messages": ("topics/orders/messages", "customer-1"),
    "settings": ("topics/orders/settings", "retention.ms"),
    "groups": ("groups", "billing"),
    "group": ("groups/billing", "Furthest behind"),
    "transactions": ("transactions", "No transaction is in progress"),
    "quorum": ("quorum", "Failures survived"),
    "security": ("security", "User:ANONYMOUS"),
    "timeline": ("timeline", "became leader"),
    "audit": ("audit", "This node writes no audit log"),
    "explain": ("explain/topics/orders/0?offset=0&principal=User:alice", "If a node stopped now"),
    "explain-group": ("explain/groups/billing", "Collected by node"),
}
"""Page → its path, and text that is there once its data is."""

HOSTILE: tuple[bytes, ...] = (
    b"<script>window.hacked = 1</script>",
    b"<img src=x onerror='window.hacked = 1'>",
    b"<svg/onload=window.hacked=1>",
    b"javascript:window.hacked=1",
    b'"><iframe srcdoc="<script>parent.hacked=1</script>">',
    b"{{constructor.constructor('window.hacked=1')()}}",
    b'{"__proto__": {"hacked": 1}, "a": "</script><script>window.hacked=1</script>"}',
    "\u202e\u0000\u2028<b>bold</b>\ufeff".encode(),
    b"\xff\xfe<script>window.hacked=1</script>",
    b"[" * 5_000 + b"]" * 5_000,
    b"\x81" * 5_000,
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff\x00",
    b"\x82\xa4name\xa9<b>x</b>\xff\xa1b\xc4\x02\x00\x01",
    b"",
)
"""Values that would become markup, or stop the page, if it did anything but show them as text."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with running_cluster(3) as running:
        api = running.nodes[0].api
        replicated = {"replication_factor": 3}
        call(api, "POST", "/v1/topics", {"name": "orders", "partitions": 3, **replicated})
        call(api, "POST", "/v1/topics", {"name": "hostile", "partitions": 1, **replicated})
        orders = [
            {"key": f"customer-{n % 3}", "value": {"item": "tea", "count": n}, "headers": {"n": str(n)}}
            for n in range(40)
        ]
        call(api, "POST", "/v1/topics/orders/records", {"records": orders})
        for value in HOSTILE:
            text = base64.b64encode(value).decode()
            record = {"key": {"base64": text}, "value": {"base64": text}}
            record["headers"] = [{"key": value.decode("utf-8", "replace")[:200], "value": {"base64": text}}]
            call(api, "POST", "/v1/topics/hostile/records", {"records": [record]})
        offsets = [{"topic": "orders", "partition": n, "offset": 1} for n in range(3)]
        call(api, "POST", "/v1/groups/billing/offsets", {"offsets": offsets})
        remember_a_past(running)
        yield running


def remember_a_past(cluster: LocalCluster) -> None:
    """Give the rings of all nodes an hour's samples, as if the cluster had run that long, and start the nodes again."""
    api = cluster.nodes[0].api
    topics = [call(api, "GET", f"/v1/topics/{name}")["id"] for name in ("orders", "hostile")]
    now = time.time_ns() // 1_000_000 // SLOT_MS
    for number, node in enumerate(cluster.nodes):
        cluster.kill_node(node.node_id)
        columns = Columns()
        for key in topics:
            columns.topics.take(key, now - 360, busy=True)
        columns.groups.take("billing", now - 360, busy=True)
        orders, billing = columns.of_topic(topics[0]), columns.of_group("billing")
        assert orders is not None and billing is not None
        ring = Ring(LocalDisk(os.path.join(node.folder, "data")))
        for slot in range(now - 360, now):
            at = slot - now + 360
            rate = 420 + 260 * math.sin(at / 41 + number) + 90 * math.sin(at / 7)
            values = dict(zip(NODE_SERIES, (rate, 4e9 + at * 8e6, 9e10 - at * 8e6, 2, 0, 0, 2.1, 9.0), strict=True))
            row = {column: values[name] for column, name in enumerate(NODE_SERIES)}
            row |= {orders[0][0]: rate, orders[0][1]: 1.2e9 + at * 2.4e6, billing[0][0]: (at % 90) * 60.0}
            ring.write(slot, encode_row(slot, row), columns.encode() if slot == now - 360 else None)
        cluster.start_node(node.node_id)
    cluster.wait_ready(PATIENCE_S)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        launched = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


class Watched:
    """A page of the console, whose errors and requests are kept."""

    def __init__(self, browser: Any, base: str, size: str = "desktop", scheme: str = "light", **options: Any) -> None:
        width, height = SIZES[size]
        self.base = base
        self.context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **options)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda one: self.errors.append(one.text) if one.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def open(self, path: str, text: str) -> None:
        self.page.goto(f"{self.base}/console/#/{path}")
        self.page.get_by_text(text).first.wait_for()

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.context.close()
        if kind is None:
            assert self.errors == []
            assert [url for url in self.requests if not url.startswith(self.base)] == []


@pytest.fixture(scope="module")
def base(cluster: LocalCluster) -> str:
    return f"http://{cluster.nodes[0].api}"


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The accessibility checker, from the npm registry."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm")
    folder = tmp_path_factory.mktemp("axe")
    packed = subprocess.run(
        [npm, "pack", "--silent", f"axe-core@{AXE_VERSION}"], cwd=folder, capture_output=True, timeout=120, check=False
    )
    if packed.returncode:
        pytest.skip("axe-core cannot be had")
    shutil.unpack_archive(next(folder.glob("*.tgz")), folder, filter="data")
    return (folder / "package" / "axe.min.js").read_text()


def call(api: str, method: str, path: str, body: Any = None) -> Any:
    """Send a request of JSON to a node; return its answer. Raises `OSError` if it is refused."""
    data = None if body is None else msgspec.json.encode(body)
    request = urllib.request.Request(f"http://{api}{path}", data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        read = answer.read()
    return msgspec.json.decode(read) if read else None


def shoot(page: Any, name: str) -> None:
    folder = os.environ.get("RAFTLOG_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_page_shows_its_data_and_is_accessible(browser: Any, base: str, axe: str, size: str, scheme: str) -> None:
    with Watched(browser, base, size, scheme) as watched:
        page = watched.page
        for name, (path, text) in PAGES.items():
            watched.open(path, text)
            assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0], f"{name} is too wide"
            shoot(page, f"{name}-{size}-{scheme}")
            page.evaluate(axe)
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            serious = [
                f"{one['id']}: {node['html'][:200]}"
                for one in found["violations"]
                if one["impact"] in ("serious", "critical")
                for node in one["nodes"]
            ]
            assert serious == [], name


def test_bytes_of_records_are_only_ever_text_s11(browser: Any, base: str) -> None:
    with Watched(browser, base) as watched:
        page = watched.page
        page.on("dialog", lambda dialog: watched.errors.append(f"a dialog: {dialog.message}"))
        watched.open("topics/hostile/messages", f"{len(HOSTILE)} records")
        for button in page.locator("td button[aria-expanded]").all():
            button.click()
        for button in page.locator(".tabs button").all():
            if button.text_content() != "Copy":
                button.click()
        assert page.locator(".record").count() == len(HOSTILE)
        assert page.evaluate("[window.hacked, ({}).hacked, window.name]") == [None, None, ""]
        # The page's own script and picture, and nothing that a record brought along.
        assert page.evaluate("document.scripts.length") == 1
        inside = (
            "document.querySelectorAll('main :is(script, img, iframe, b, svg, object, embed, a[href^=javascript])')"
        )
        assert page.evaluate(f"{inside}.length") == 0
        assert page.get_by_text("<script>window.hacked = 1</script>").count() > 0


def test_a_record_is_produced_found_and_followed_live(browser: Any, base: str, cluster: LocalCluster) -> None:
    call(cluster.nodes[0].api, "POST", "/v1/topics", {"name": "live", "partitions": 1, "replication_factor": 3})
    with Watched(browser, base) as watched:
        page = watched.page
        watched.open("topics/live/messages", "No records here")
        page.get_by_role("button", name="Follow live").click()
        page.get_by_role("button", name="Produce").click()
        page.get_by_label("Key").fill("k-1")
        page.get_by_label("Value").fill('{"number": 12345678901234567890}')
        page.get_by_label("Headers").fill("source=console")
        page.get_by_role("dialog").get_by_role("button", name="Produce").click()
        page.get_by_text("Durable on every in-sync replica: partition 0, offset 0.").wait_for()
        page.keyboard.press("Escape")
        page.locator("td", has_text="k-1").first.wait_for()
        page.get_by_role("button", name="Record 0 of partition 0").click()
        assert "12345678901234567890" in (page.get_by_label("Value", exact=True).first.text_content() or "")
        shoot(page, "record-desktop-light")
        page.get_by_label("Filter").fill("no such text")
        page.get_by_text("No record holds this text.").wait_for()
        page.get_by_label("Filter").fill("console")
        page.locator("td", has_text="k-1").first.wait_for()


def test_all_partitions_are_followed_by_the_stream_and_only_new_records_are_read(
    browser: Any, base: str, cluster: LocalCluster
) -> None:
    api = cluster.nodes[0].api
    call(api, "POST", "/v1/topics", {"name": "wide", "partitions": 8, "replication_factor": 1})
    with Watched(browser, base) as watched:
        page = watched.page
        watched.open("topics/wide/messages", "No records here")
        with page.expect_request(lambda request: "/v1/events" in request.url and "wide" in request.url):
            page.get_by_role("button", name="Follow live").click()
        before = len(watched.requests)
        for partition in (2, 5):
            record = {"value": f"followed-{partition}", "partition": partition}
            call(api, "POST", "/v1/topics/wide/records", {"records": [record]})
        for partition in (2, 5):
            page.locator("td", has_text=f"followed-{partition}").first.wait_for()
        asked = [request for request in watched.requests[before:] if "/records?" in request]
        assert {request.partition("/partitions/")[2].partition("/")[0] for request in asked} == {"2", "5"}, asked
        page.get_by_role("button", name="Stop following").click()


def test_pages_change_by_themselves_and_nothing_is_polled(browser: Any, base: str, cluster: LocalCluster) -> None:
    api = cluster.nodes[0].api
    with Watched(browser, base) as watched:
        page = watched.page
        watched.open("topics", "orders")
        page.locator("#live[data-state=on]").wait_for()
        before = len(watched.requests)
        call(api, "POST", "/v1/topics", {"name": "appears", "partitions": 1, "replication_factor": 3})
        page.get_by_role("link", name="appears", exact=True).wait_for()
        call(api, "DELETE", "/v1/topics/appears")
        page.get_by_role("link", name="appears", exact=True).wait_for(state="detached")
        assert watched.requests[before:] == [], "the one stream brought it"
        watched.open("topics/orders", "High watermark")
        streams = [url for url in watched.requests[before:] if "/v1/events?" in url]
        assert 1 <= len(streams) <= 2 and "offsets" in streams[-1]


def test_settings_are_changed_after_their_plan_was_shown(browser: Any, base: str, cluster: LocalCluster) -> None:
    call(cluster.nodes[0].api, "POST", "/v1/topics", {"name": "tuned", "partitions": 1, "replication_factor": 3})
    with Watched(browser, base) as watched:
        page = watched.page
        watched.open("topics/tuned/settings", "retention.ms")
        page.get_by_label("retention.ms", exact=True).fill("3600000")
        page.get_by_role("button", name="Review the change").click()
        dialog = page.get_by_role("dialog")
        assert "604800000" in (dialog.text_content() or "") and "3600000" in (dialog.text_content() or "")
        before = call(cluster.nodes[0].api, "GET", "/v1/topics/tuned")
        assert before["configs"]["retention.ms"] == "604800000", "a plan changes nothing"
        dialog.get_by_role("button", name="Apply").click()
        page.get_by_text("The settings have been changed.").wait_for()
        page.get_by_text("this topic").wait_for()
    assert call(cluster.nodes[0].api, "GET", "/v1/topics/tuned")["configs"]["retention.ms"] == "3600000"


def test_a_group_is_reset_by_the_plan_that_was_shown(browser: Any, base: str, cluster: LocalCluster) -> None:
    call(
        cluster.nodes[0].api,
        "POST",
        "/v1/groups/late/offsets",
        {"offsets": [{"topic": "orders", "partition": 0, "offset": 1}]},
    )
    with Watched(browser, base) as watched:
        page = watched.page
        watched.open("groups/late", "Furthest behind")
        page.get_by_role("button", name="Reset offsets").click()
        page.get_by_label("Move to").select_option("earliest")
        page.get_by_role("button", name="Show the plan").click()
        page.get_by_role("button", name="Apply this plan").click()
        page.get_by_text("The offsets have been moved.").wait_for()
    rows = call(cluster.nodes[0].api, "GET", "/v1/groups/late/offsets")["offsets"]
    assert [row["offset"] for row in rows] == [0]


def test_the_keyboard_reaches_everything(browser: Any, base: str) -> None:
    with Watched(browser, base) as watched:
        page = watched.page
        watched.open("", "Nodes")
        page.locator("body").focus()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main-content"
        page.keyboard.press("g")
        page.keyboard.press("t")
        page.get_by_role("heading", name="Topics", exact=True).wait_for()
        page.get_by_text("orders").first.wait_for()
        page.keyboard.press("/")
        page.keyboard.type("host")
        page.get_by_text("1 of").wait_for()
        reached = set()
        for _ in range(12):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.textContent.trim()"))
        assert {"New topic", "hostile", "Messages"} <= reached


def test_the_switch_of_the_theme_is_kept(browser: Any, base: str) -> None:
    with Watched(browser, base) as watched:
        page = watched.page
        watched.open("", "Nodes")
        ground = "getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(ground)
        page.get_by_role("button", name=re.compile("^Theme")).click()
        page.get_by_role("button", name=re.compile("^Theme")).click()
        dark = page.evaluate(ground)
        page.reload()
        page.get_by_text("Nodes").first.wait_for()
        assert page.evaluate(ground) == dark != light


def test_a_page_that_does_not_exist_says_so(browser: Any, base: str) -> None:
    with Watched(browser, base) as watched:
        watched.open("nothing/here", "No such page")
        watched.open("topics/%E0%A4%A", "No such page")


def test_plots_show_the_time_before_the_nodes_were_started_again(browser: Any, base: str) -> None:
    with Watched(browser, base) as watched:
        page = watched.page
        for path, title in (("topics/orders", "Records per second"), ("groups/billing", "Lag in records")):
            watched.open(path, title)
            plot = page.locator(f".chart[aria-label^='{title}']").first
            plot.locator("canvas").wait_for()
            told = plot.get_attribute("aria-label") or ""
            assert "newest values" in told and not told.endswith("–"), told
        page.get_by_label("Time shown").select_option("1440")
        page.locator("canvas").first.wait_for()
        assert page.get_by_text("The first sample comes").count() == 0


def test_a_dead_node_is_explained_and_in_the_timeline(browser: Any, base: str, cluster: LocalCluster) -> None:
    """The last test of this cluster: it kills a node."""
    dead = cluster.nodes[2].node_id
    cluster.kill_node(dead)
    with Watched(browser, base) as watched:
        page = watched.page
        watched.open("", "Partitions that lack replicas")
        page.get_by_text("a node is missing").wait_for()
        shoot(page, "dead-node-overview-desktop-light")
        page.locator("a[href^='#/explain/topics/orders/']").first.click()
        page.get_by_role("heading", name="If a node stopped now").wait_for()
        shown = page.locator(".finding").first.text_content() or ""
        assert f"node {dead}" in shown and f"start node {dead}" in shown and "node_dead" in shown
        shoot(page, "dead-node-explain-desktop-light")
        watched.open("timeline", f"node {dead} was fenced")
        page.get_by_label("Severity").select_option("critical")
        page.get_by_label("Severity").select_option("warning")
        page.get_by_text(f"node {dead} was fenced").first.wait_for()
        shoot(page, "dead-node-timeline-desktop-dark")
