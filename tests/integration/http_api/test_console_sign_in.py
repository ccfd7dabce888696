"""The console of a secured cluster in headless Chromium: signing in, what each user sees, and the end of a credential
(S12)."""

from __future__ import annotations

import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from raftlog.cli.nodes.local_cluster import LocalCluster, free_base_port

from .test_console_browser import AXE_VERSION, SIZES, Watched, axe, browser, playwright, shoot

assert AXE_VERSION and axe and browser and playwright, "fixtures of this module, too"

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.integration, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")]

PASSWORD = "a password of the tests"


class Secured:
    """A cluster with an administrator, and alice, who may read one of two topics."""

    def __init__(self, cluster: LocalCluster) -> None:
        assert cluster.security is not None
        self._context: ssl.SSLContext = cluster.security.client_context()
        self.admin = cluster.security.token()
        self.base = f"https://{cluster.nodes[0].api}"
        for name in ("orders", "secret"):
            self.call("POST", "/v1/topics", {"name": name, "partitions": 2})
        self.call("POST", "/v1/users", {"name": "alice", "password": PASSWORD})
        rule = {"principal": "User:alice", "operation": "read", "resource_type": "topic", "name": "orders"}
        self.call("POST", "/v1/acls", {"acls": [rule]})

    def call(self, method: str, path: str, body: Any = None, token: str = "") -> Any:
        """Send a request as the administrator, or with another token. Raises `OSError` if it is refused."""
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token or self.admin}"}
        request = urllib.request.Request(f"{self.base}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60, context=self._context) as answer:
            read = answer.read()
        return msgspec.json.decode(read) if read else None


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = LocalCluster(str(tmp_path_factory.mktemp("secure") / "c"), 3, free_base_port(3), secure=True)
    with made:
        made.start()
        made.wait_ready(60)
        yield Secured(made)


class Visitor(Watched):
    """A page of the secured console. The browser reports each refused request as an error, which is none here."""

    def __init__(self, browser: Any, base: str, size: str = "desktop", scheme: str = "light") -> None:
        super().__init__(browser, base, size, scheme, ignore_https_errors=True)

    def __exit__(self, kind: object, *rest: object) -> None:
        refused = "Failed to load resource: the server responded with a status of 40"
        self.errors = [text for text in self.errors if not text.startswith(refused)]
        super().__exit__(kind, *rest)

    def sign_in(self, *, token: str = "", name: str = "", password: str = "") -> None:
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_label("Name").fill(name)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Sign in").click()


def test_a_wrong_credential_opens_nothing_and_a_right_one_everything_s12(browser: Any, secured: Secured) -> None:
    with Visitor(browser, secured.base) as visitor:
        page = visitor.page
        visitor.open("topics", "Sign in")
        visitor.sign_in(token="rlt_abcdefghijkl_" + "A" * 43)
        page.get_by_text("The node does not accept this.").wait_for()
        visitor.sign_in(name="alice", password="a wrong password")
        page.get_by_text("The node does not accept this.").wait_for()
        assert page.evaluate("sessionStorage.length") == 0
        assert "orders" not in page.content()
        visitor.sign_in(token=secured.admin)
        page.get_by_text("secret").first.wait_for()
        assert page.locator("#who").text_content() == "admin"
        page.reload()
        page.get_by_text("secret").first.wait_for()
        assert page.evaluate("document.cookie") == ""
        page.get_by_role("button", name="Sign out").click()
        page.get_by_role("heading", name="Sign in").wait_for()
        assert page.evaluate("sessionStorage.length") == 0
        stored = page.evaluate("JSON.stringify([{...localStorage}, {...sessionStorage}])")
        assert secured.admin not in stored


def test_a_user_sees_what_its_rules_allow_and_a_change_of_them_at_once_s12(browser: Any, secured: Secured) -> None:
    with Visitor(browser, secured.base) as visitor:
        page = visitor.page
        visitor.open("topics", "Sign in")
        visitor.sign_in(name="alice", password=PASSWORD)
        page.get_by_role("link", name="orders", exact=True).wait_for()
        assert page.get_by_role("link", name="secret", exact=True).count() == 0
        for path in ("topics/secret", "explain/topics/secret/0", "audit", "quorum"):
            visitor.open(path, "may not")
        visitor.open("explain/topics/orders/0", "If a node stopped now")
        visitor.open("timeline", "orders/0")
        assert page.get_by_text("secret/").count() == 0
        visitor.open("topics", "orders")
        rule = {"principal": "User:alice", "operation": "describe", "resource_type": "topic", "name": "secret"}
        secured.call("POST", "/v1/acls", {"acls": [rule]})
        page.get_by_role("link", name="secret", exact=True).wait_for()
        secured.call("POST", "/v1/acls/delete", rule)
        page.get_by_role("link", name="secret", exact=True).wait_for(state="detached")


def test_the_end_of_a_credential_ends_the_console_s12(browser: Any, secured: Secured) -> None:
    secured.call("POST", "/v1/users", {"name": "carol", "superuser": True})
    token = secured.call("POST", "/v1/users/carol/tokens", {})
    with Visitor(browser, secured.base) as visitor:
        visitor.open("topics", "Sign in")
        visitor.sign_in(token=token["token"])
        visitor.page.get_by_text("secret").first.wait_for()
        secured.call("DELETE", f"/v1/users/carol/tokens/{token['id']}")
        visitor.page.get_by_role("heading", name="Sign in").wait_for()
        assert "secret" not in visitor.page.content()
    with pytest.raises(urllib.error.HTTPError):
        secured.call("GET", "/v1/topics", token=token["token"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_the_pages_that_need_security_are_accessible(
    browser: Any, secured: Secured, axe: str, size: str, scheme: str
) -> None:
    with Visitor(browser, secured.base, size, scheme) as visitor:
        page = visitor.page
        visitor.open("audit", "Sign in")
        for name, text in (("sign-in", ""), ("audit", "create"), ("security", "Access rules")):
            if name == "audit":
                visitor.sign_in(token=secured.admin)
            if text:
                visitor.open(name, text)
            assert page.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0], f"{name} is too wide"
            shoot(page, f"secured-{name}-{size}-{scheme}")
            page.evaluate(axe)
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            serious = [
                f"{one['id']}: {node['html'][:200]}"
                for one in found["violations"]
                if one["impact"] in ("serious", "critical")
                for node in one["nodes"]
            ]
            assert serious == [], name
