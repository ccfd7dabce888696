"""The import order of the folders in each room, and no cycle anywhere."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping

import pytest

from .sources import ROOT, Source, sources

# Room → its folders and files in order. Each may import those before it, and nothing after it.
ORDER: Mapping[str, tuple[str, ...]] = {
    "partitions": (
        "files", "producers", "recovery", "compaction", "log", "replica", "driver", "replication", "fetch", "opening",
        "upkeep", "view", "manager",
    ),
    "metadata": (
        "voters", "records", "rules", "commands", "view", "journal", "raft", "image", "snapshot", "controller",
        "quorum", "quorum_thread",
    ),
    "raftlog.broker": (
        "unforeseen", "peer_faults", "identity", "loop_stalls", "replication_links", "changes", "security", "requests",
        "tls", "explain", "instances", "wiring", "health", "metrics", "plots", "roll_check", "service", "verify",
        "segment_dump", "node",
    ),
    "raftlog.broker.security": (
        "unauthenticated", "audit", "quotas", "passwords", "identity_provider", "authentication", "access",
        "administration", "exposure",
    ),
    "raftlog.client": (
        "credentials", "times", "settings", "keywords", "cluster", "producing", "consuming", "typed_topic",
        "transactions", "groups", "producer", "consumer", "admin", "prometheus", "opentelemetry", "blocking",
    ),
    "raftlog.backup": (
        "format", "batches", "chain", "storage", "repository", "off_loop", "progress", "cluster", "create", "verify",
        "restore",
    ),
    "raftlog.cli": ("terminal", "nodes", "records", "bench", "doctor", "top", "commands", "main"),
    "raftlog.security": ("principals", "acls", "secrets", "presented", "authorizer"),
    "raftlog.http2": (
        "frames", "limits", "client_hello", "h2_setup", "keepalive", "admission", "address_rates", "turns", "messages",
        "stream_table", "events", "unread", "tls", "receiving", "sending", "core", "transport", "exchange",
        "connection", "tls_accept", "listener", "dialer",
    ),
    "raftlog": (
        "version", "errors", "metrics", "prometheus", "quantities", "toml_settings", "model", "idempotency", "security",
        "ports",
        "config", "settings", "logs", "partitioner", "patterns", "json_values", "slices", "trace_context",
        "transactions", "records", "system", "wire", "api", "http2", "client", "sync", "backup", "broker", "cli",
    ),
    "http_api": (
        "exchange", "service", "metrics", "web", "records", "routes", "rest_proxy", "streams", "live", "console",
        "viewer", "app",
    ),
    "spark_source": (
        "options", "connections", "requirements", "java", "shipping", "reading", "driver", "tasks", "writing", "sink",
        "source", "default_source",
    ),
    "jepsen_like": (
        "histories", "checkers", "clients", "provenance", "run_records", "clusters", "nemeses", "workloads",
        "simulator", "scoreboard", "planted", "report", "check", "corpora", "runs", "chaos", "__main__",
    ),
    "jepsen_like.simulator": (
        "world", "quorum", "brokers", "truth", "load", "cluster", "transactions", "groups", "security", "library",
        "consumers", "shards",
        "__main__",
    ),
}  # fmt: skip


def room_of(module: str) -> str:
    """The innermost room in which a module lies."""
    inside = [room for room in ORDER if module == room or module.startswith(room + ".")]
    return max(inside, key=len)


def child(module: str, room: str) -> str:
    """The room's folder or file that a module belongs to; an empty name for the room's own `__init__`."""
    return module[len(room) + 1 :].partition(".")[0]


@functools.cache
def graph() -> Mapping[str, frozenset[str]]:
    """Module → the modules that it imports, in functions and for types as well."""
    names = {source.name for source in sources()}
    return {source.name: frozenset(_imported(source, names)) for source in sources()}


def _imported(source: Source, names: set[str]) -> Iterable[str]:
    for imported, _ in source.imports:
        module = imported if imported in names else imported.rpartition(".")[0]
        if module in names and module != source.name:
            yield module


def circles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for following in edges.get(node, ()):
            if following not in index:
                visit(following)
                low[node] = min(low[node], low[following])
            elif following in stack:
                low[node] = min(low[node], index[following])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in edges:
        if node not in index:
            visit(node)
    return found


def test_no_circle_between_files() -> None:
    assert circles(graph()) == []


def test_circles_are_found() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": ["b"]}) == [["b", "c"]]


@pytest.mark.parametrize("room", ORDER)
def test_every_folder_has_its_place(room: str) -> None:
    inside = {child(source.name, room) for source in sources() if source.name.startswith(room + ".")}
    assert inside == set(ORDER[room])


@pytest.mark.parametrize("room", ORDER)
def test_folders_import_only_those_before_them(room: str) -> None:
    order = ORDER[room]
    wrong = []
    for module, imported in graph().items():
        for other in imported:
            if not (module.startswith(room + ".") and other.startswith(room + ".")):
                continue
            own, its = child(module, room), child(other, room)
            if own != its and order.index(its) > order.index(own):
                wrong.append(f"{module} imports {other}")
    assert wrong == []


@pytest.mark.parametrize("room", ORDER)
def test_the_architecture_shows_the_order(room: str) -> None:
    row = f"| `{room.replace('.', '/')}/` | {', '.join(ORDER[room])} |"
    assert row in (ROOT / "ARCHITECTURE.md").read_text()
