"""Strangers at a secured cluster, beside any workload: they ask every node for everything without the right to (S12).

    strangers = Strangers(nodes=..., security=..., history=..., now=..., seed=...)
    await strangers.begin()          # users, tokens, certificates
    ...                              # the workload runs, faults are injected, everything is healed
    await strangers.end()            # what is in the cluster, for the checker

*Permanent strangers*: no credential; an invented token; the certificate of a user that does not exist, of a node at the
doors of users, of a user, a node of another cluster, or none at the doors of nodes; certificates of a foreign
authority; two credentials that disagree; a user without rules.

*Visitors* come every few seconds: a user with a password, a certificate and tokens, who may read the workload's topics.
A while later one token is revoked, another has expired, and then the user is removed. Their credentials are shown again
until the end of the run, at all nodes, and streams that they opened in time stay open for as long as the nodes let
them.

Every answer is a note in the history, with the time at which its request began; so is the end of each right, and the
time at which each node is seen to know of it. `checkers/strangers.py` judges them.
"""

from __future__ import annotations

import asyncio
import base64
import random
import secrets
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raftlog.client.cluster.api import HttpApi
from raftlog.errors import RaftlogError
from raftlog.model import Endpoint
from raftlog.wire import FETCH_PATH, encode

from ..checkers.strangers import ACTOR, ASKED, ENDED, FINAL, HELD, LEARNT, OVER
from ..clients.stranger import Heard, HeldStream, ask_api, ask_stream
from ..clusters.security import ADMINISTRATOR, APPLICATION, ClusterSecurity, Pair, change, new_authority, node_name
from ..histories.file import HistoryFile
from .stranger_requests import API, VALUE, Door, api_doors, data_doors, fetch_request, node_doors, traces

GUEST = "guest"
"""The user without rules."""
PAUSE_SECONDS = 0.05
"""Between two requests at one node."""
STAY_SECONDS = 2.0
"""How long a visitor has its rights, and how long it is away before the next one comes."""
EXPIRES_MS = 1_500
VISITORS_KEPT = 8
"""Visitors that still come after their rights have ended, the latest ones."""
LOOK_SECONDS = 0.5
LAST_WAIT_SECONDS = 20.0
"""After the workload: time for the last rights to end at every node."""
CHANGE_SECONDS = 120.0
INVENTORY = (
    "/v1/topics", "/v1/groups", "/v1/users", "/v1/acls", "/v1/quotas", "/v1/positions", "/v1/transactions",
    f"/v1/users/{ADMINISTRATOR}/tokens",
)  # fmt: skip


Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Node:
    """One node's two listeners."""

    name: str
    api: Endpoint
    data: Endpoint


@dataclass(frozen=True, slots=True)
class Contexts:
    """The TLS contexts of a stranger, whose protocols differ: that of the API, and that of streams."""

    api: ssl.SSLContext
    data: ssl.SSLContext

    @classmethod
    def of(cls, security: ClusterSecurity, pair: Pair | None = None) -> Contexts:
        return cls(security.context(pair), security.context(pair))


@dataclass(frozen=True, slots=True)
class Stranger:
    """One way to show a credential, or none."""

    kind: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: Contexts | None = None
    """With a certificate; None: without."""
    right: str = ""
    """The right that it has or had; empty: it never had one."""
    is_user: bool = False
    """Whether the credential is valid, though no rule allows anything."""


@dataclass(slots=True)
class Visitor:
    """A user with rights that end."""

    name: str
    strangers: list[Stranger]
    tokens: Mapping[str, str]
    """Right → token id."""
    ended: dict[str, bool] = field(default_factory=dict)
    """Right → whether the cluster has decided its end."""
    learnt: set[tuple[str, str]] = field(default_factory=set)


class Strangers:
    """Belongs to one event loop: `begin`, and then `end` or `stop`."""

    def __init__(
        self,
        *,
        nodes: tuple[Node, ...],
        bootstrap: tuple[str, ...],
        cluster_id: str,
        security: ClusterSecurity,
        history: HistoryFile,
        now: Callable[[], int],
        seed: int,
        clocks_are_right: bool,
    ) -> None:
        """`bootstrap`: the API addresses of the nodes in the same order. `now`: nanoseconds since the run began.
        `clocks_are_right`: whether no fault touches clocks, so that an expiry has a known time."""
        self._nodes = nodes
        self._bootstrap = bootstrap
        self._cluster_id = cluster_id
        self._security = security
        self._history = history
        self._now = now
        self._random = random.Random(f"{seed}/strangers")
        self._clocks_are_right = clocks_are_right
        self._strangers: list[Stranger] = []
        self._at_nodes: list[Stranger] = []
        """Those that ask at the doors of nodes."""
        self._visitors: list[Visitor] = []
        self._plain = Contexts.of(security)
        self._user_doors: list[Door] = []
        self._node_doors: list[Door] = []
        self._topic_id = b""
        self._before: dict[str, Any] = {}
        self._streams: dict[str, HeldStream] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._count = 0
        self._stopped = False

    async def begin(self) -> None:
        """Prepare credentials, and begin to ask. The workload's topics exist. Raises a `RaftlogError`."""
        async with asyncio.timeout(CHANGE_SECONDS), HttpApi(list(self._bootstrap)) as api:
            await self._find_doors(api)
            await change(api, "POST", "/v1/users", {"name": GUEST}, done=("user_exists",))
            guest = str((await change(api, "POST", f"/v1/users/{GUEST}/tokens", {}))["token"])
            self._before = await self._inventory(api)
        self._make_strangers(guest)
        work = [self._receive(), *(self._knock(node) for node in self._nodes), *(self._look(n) for n in self._nodes)]
        self._tasks = [asyncio.create_task(one) for one in work]

    async def end(self) -> None:
        """Ask a last time, stop, and note what is in the cluster. Raises the error of the suite that ended a task."""
        deadline = asyncio.get_running_loop().time() + LAST_WAIT_SECONDS
        while self._unlearnt() and asyncio.get_running_loop().time() < deadline:
            self._check()
            await asyncio.sleep(LOOK_SECONDS)
        await asyncio.sleep(STAY_SECONDS)
        self._check()
        async with asyncio.timeout(CHANGE_SECONDS), HttpApi(list(self._bootstrap)) as api:
            after = await self._inventory(api)
        before, now = _lasting(self._before), _lasting(after)
        changed = [name for name, document in before.items() if now.get(name) != document]
        self._history.note(ACTOR, FINAL, {"made": traces(after), "changed": changed, "value": VALUE})
        await self.stop()

    async def stop(self) -> None:
        """Stop asking. Idempotent."""
        self._stopped = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in list(self._streams.values()):
            stream.close()

    # --- Who they are -------------------------------------------------------------------------------------------------

    async def _find_doors(self, api: HttpApi) -> None:
        topics = (await api.get("/v1/topics", Document))["topics"]
        topic = min(one["name"] for one in topics if not one["name"].startswith("_"))
        topic_id = str((await api.get(f"/v1/topics/{topic}", Document))["id"])
        self._topic_id = bytes.fromhex(topic_id)
        self._user_doors = [*api_doors(topic, topic_id, self._cluster_id), *data_doors(self._topic_id, forwarded=False)]
        self._node_doors = node_doors(self._topic_id)

    def _make_strangers(self, guest: str) -> None:
        security, number = self._security, len(self._nodes) - 1
        foreign = new_authority()
        node = node_name(self._cluster_id, number)
        application = bearer(security.token_file(APPLICATION).read_text())
        certificates = {
            "a node": security.sign("node-as-user", node),
            "a node of another cluster": security.sign("other-node", node_name(f"{self._cluster_id}x", number)),
            "an unknown user": security.sign("no-user", "URI:raftlog:/user/unknown"),
            "the guest": security.sign(GUEST, f"URI:raftlog:/user/{GUEST}"),
            "a foreign authority, of the administrator": security.sign(
                "foreign-admin", "URI:raftlog:/user/admin", by=foreign
            ),
            "a foreign authority, of a node": security.sign("foreign-node", node, by=foreign),
        }
        tls = {name: Contexts.of(security, pair) for name, pair in certificates.items()}
        guests = {"token": bearer(guest)}
        self._strangers = [
            Stranger("no credential"),
            Stranger("an invented token", bearer(f"rlt_{'a' * 12}_{secrets.token_urlsafe(32)}")),
            Stranger("an invented password", basic("admin", "correct horse battery")),
            *(Stranger(f"the certificate of {name}", tls=tls[name]) for name in certificates if name != "the guest"),
            Stranger("the guest's certificate and another's token", application, tls["the guest"]),
            *(Stranger(f"the guest by {name}", headers, is_user=True) for name, headers in guests.items()),
            Stranger("the guest by certificate", tls=tls["the guest"], is_user=True),
        ]
        self._at_nodes = [
            Stranger("no credential at a node's door"),
            Stranger("a user's token at a node's door", application),
            *(
                Stranger(f"the certificate of {name} at a node's door", tls=tls[name])
                for name in certificates
                if name != "a node"
            ),
        ]

    async def _receive(self) -> None:
        """Let visitors come and go."""
        async with HttpApi(list(self._bootstrap)) as api:
            while True:
                visitor = await self._new_visitor(api)
                self._visitors = [*self._visitors[-VISITORS_KEPT:], visitor]
                await self._hold_streams(visitor)
                await asyncio.sleep(STAY_SECONDS)
                name, revoked = visitor.name, f"{visitor.name}/revoked"
                path = f"/v1/users/{name}/tokens/{visitor.tokens[revoked]}"
                await change(api, "DELETE", path, done=("unknown_token",))
                self._ended(visitor, revoked)
                await asyncio.sleep(STAY_SECONDS)
                await change(api, "DELETE", f"/v1/users/{name}", done=("unknown_user",))
                self._ended(visitor, f"{name}/removed")
                await asyncio.sleep(STAY_SECONDS)

    async def _new_visitor(self, api: HttpApi) -> Visitor:
        self._count += 1
        name = f"visitor-{self._count}"
        password = secrets.token_urlsafe(12)
        await change(api, "POST", "/v1/users", {"name": name, "password": password}, done=("user_exists",))
        rule = {"principal": f"User:{name}", "operation": "read", "resource_type": "topic", "name": "*"}
        await change(api, "POST", "/v1/acls", {"acls": [rule]})
        made = {}
        for what, body in (("revoked", {}), ("expired", {"expires_in_ms": EXPIRES_MS}), ("removed", {})):
            made[what] = await change(api, "POST", f"/v1/users/{name}/tokens", body)
        visitor = Visitor(name, [], {f"{name}/{what}": str(one["id"]) for what, one in made.items()})
        if self._clocks_are_right:
            # Its time is the cluster's, which lags behind a little.
            ends = self._now() + (EXPIRES_MS + 1_000) * 1_000_000
            self._history.note(ACTOR, ENDED, {"right": f"{name}/expired", "at": ends})
        pair = self._security.sign(name, f"URI:raftlog:/user/{name}")
        removed = f"{name}/removed"
        visitor.strangers = [
            *(Stranger(f"a token that is {what}", bearer(one["token"]), right=f"{name}/{what}")
              for what, one in made.items()),
            Stranger("the password of a removed user", basic(name, password), right=removed),
            Stranger("the certificate of a removed user", tls=Contexts.of(self._security, pair), right=removed),
        ]  # fmt: skip
        return visitor

    def _ended(self, visitor: Visitor, right: str) -> None:
        visitor.ended[right] = True
        self._history.note(ACTOR, ENDED, {"right": right})

    # --- What they do -------------------------------------------------------------------------------------------------

    async def _knock(self, node: Node) -> None:
        """Ask one node, one request after the other."""
        while True:
            stranger, door = self._drawn()
            began = self._now()
            heard = await self._ask(node, stranger, door)
            allowed = stranger.is_user and (door.to_users or (door.method == "GET" and heard.outcome == "nothing"))
            self._note(node, ASKED, stranger, str(door), heard, {"began": began, "allowed": allowed})
            await asyncio.sleep(PAUSE_SECONDS)

    def _drawn(self) -> tuple[Stranger, Door]:
        draw = self._random
        if draw.random() < 0.2:
            return draw.choice(self._at_nodes), draw.choice(self._node_doors)
        visitors = [one for visitor in self._visitors for one in visitor.strangers]
        if visitors and draw.random() < 0.6:
            return draw.choice(visitors), draw.choice(self._user_doors)
        return draw.choice(self._strangers), draw.choice(self._user_doors)

    async def _ask(self, node: Node, stranger: Stranger, door: Door) -> Heard:
        tls = stranger.tls or self._plain
        if door.listener == API:
            headers = {**stranger.headers, "Content-Type": door.media_type}
            return await ask_api(node.api, tls.api, door.method, door.path, headers, door.content)
        headers = {name.lower(): text for name, text in stranger.headers.items()}
        return await ask_stream(node.data, tls.data, door.path, headers, door.content)

    async def _hold_streams(self, visitor: Visitor) -> None:
        """Open a stream of long polls at every node with each of the visitor's credentials but the password."""
        request = b"".join(map(bytes, encode(fetch_request(self._topic_id, 1, wait_ms=500))))  # type: ignore[arg-type]
        for node in self._nodes:
            for number, stranger in enumerate(visitor.strangers):
                if "password" in stranger.kind:
                    continue
                name = f"{visitor.name}/{number}@{node.name}"
                held = self._held(name, node, stranger, request)
                headers = {key.lower(): text for key, text in stranger.headers.items()}
                if await held.open(node.data, (stranger.tls or self._plain).data, FETCH_PATH, headers):
                    self._streams[name] = held
                else:
                    held.close()

    def _held(self, name: str, node: Node, stranger: Stranger, request: bytes) -> HeldStream:
        def heard(one: Heard) -> None:
            self._note(node, HELD, stranger, "a stream that is held open", one, {"stream": name})

        def over(reason: str) -> None:
            self._streams.pop(name, None)
            if not self._stopped:
                self._history.note(ACTOR, OVER, {"stream": name, "why": reason[:100]}, node=node.name)

        return HeldStream(request, heard, over)

    def _note(self, node: Node, f: str, stranger: Stranger, door: str, heard: Heard, more: Mapping[str, Any]) -> None:
        value = {"as": stranger.kind, "door": door, "outcome": heard.outcome, "told": heard.text, **more}
        if stranger.right:
            value["right"] = stranger.right
        self._history.note(ACTOR, f, value, node=node.name)

    # --- What the nodes know ------------------------------------------------------------------------------------------

    async def _look(self, node: Node) -> None:
        """Note when the node itself knows that a right has ended."""
        async with HttpApi(self._bootstrap[self._nodes.index(node)]) as api:
            while True:
                for visitor, right in self._unlearnt(node):
                    if await self._knows(api, visitor, right):
                        visitor.learnt.add((right, node.name))
                        self._history.note(ACTOR, LEARNT, {"right": right}, node=node.name)
                await asyncio.sleep(LOOK_SECONDS)

    def _unlearnt(self, node: Node | None = None) -> list[tuple[Visitor, str]]:
        """Return the ended rights of which the node, or any, was not seen to know."""
        wanted = self._nodes if node is None else (node,)
        return [
            (visitor, right)
            for visitor in self._visitors
            for right in visitor.ended
            if any((right, one.name) not in visitor.learnt for one in wanted)
        ]

    async def _knows(self, api: HttpApi, visitor: Visitor, right: str) -> bool:
        try:
            tokens = (await api.get(f"/v1/users/{visitor.name}/tokens", Document, timeout=STAY_SECONDS))["tokens"]
        except RaftlogError as error:
            return error.code == "unknown_user"
        return not right.endswith("removed") and visitor.tokens[right] not in [one["id"] for one in tokens]

    async def _inventory(self, api: HttpApi) -> dict[str, Any]:
        """Return what strangers would make or change, by the path at which it is shown."""
        found = {path: await api.get(path, Document) for path in INVENTORY}
        for topic in found["/v1/topics"]["topics"]:
            found[f"topic {topic['name']}"] = await api.get(f"/v1/topics/{topic['name']}", Document)
        return found

    def _check(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()


def bearer(token: str) -> dict[str, str]:
    """Return the header that shows a token."""
    return {"Authorization": f"Bearer {token}"}


def basic(name: str, password: str) -> dict[str, str]:
    """Return the header that shows a password."""
    return {"Authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


def _lasting(inventory: Mapping[str, Any]) -> dict[str, Any]:
    """Return what neither workload, nor visitors, nor faults change in an inventory, by its name."""
    found = {
        name: {part: document.get(part) for part in ("id", "partition_count", "configs")}
        for name, document in inventory.items()
        if name.startswith("topic ")
    }
    users = {f"user {one['name']}": one for one in inventory["/v1/users"]["users"]}
    found |= {name: one for name, one in users.items() if "visitor" not in name}
    rules = inventory["/v1/acls"]["acls"]
    found["rules"] = {"of": sorted(str(one) for one in rules if "visitor" not in one["principal"])}
    found["quotas"] = inventory["/v1/quotas"]
    return found
