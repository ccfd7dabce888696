"""Pure cores touch no clock, randomness, disk, socket or thread; elsewhere each such call has one permitted home."""

from __future__ import annotations

import ast

import pytest

from .sources import Source, sources

PURE = (
    "metadata.voters",
    "metadata.records",
    "metadata.rules",
    "metadata.commands",
    "metadata.view",
    "metadata.image",
    "metadata.snapshot",
    "metadata.controller",
    "metadata.quorum.protocol",
    "partitions.files.leader_epochs",
    "partitions.producers",
    "partitions.replica",
    "partitions.replication.protocol",
    "raftlog.metrics",
    "raftlog.trace_context",
    "raftlog.model",
    "raftlog.errors",
    "raftlog.security",
    "raftlog.records.batch",
    "raftlog.records.columns",
    "raftlog.wire",
    "raftlog.broker.explain.case",
    "raftlog.broker.explain.causes",
    "raftlog.broker.explain.consequences",
    "raftlog.broker.explain.facts",
    "raftlog.broker.explain.group",
    "raftlog.broker.explain.history",
    "raftlog.broker.explain.partition",
    "raftlog.broker.explain.timeline",
    "raftlog.broker.explain.transaction",
    "raftlog.broker.explain.wording",
    "raftlog.broker.metrics.lag_history",
    "raftlog.broker.metrics.series",
    "raftlog.broker.plots.columns",
    "raftlog.broker.plots.rows",
    "raftlog.broker.plots.sampling",
    "raftlog.broker.security.identity_provider.access_claims",
    "raftlog.broker.security.identity_provider.access_tokens",
    "raftlog.broker.security.audit.audit",
    "raftlog.broker.security.authentication.authentication",
    "raftlog.broker.security.authentication.authenticator",
    "raftlog.broker.security.passwords.check_queue",
    "raftlog.broker.security.authentication.client_names",
    "raftlog.broker.security.identity_provider.key_set",
    "raftlog.broker.security.passwords.checks",
    "raftlog.broker.security.quotas.quotas",
    "raftlog.broker.security.passwords.scram",
    "raftlog.broker.security.authentication.sessions",
    "raftlog.broker.security.identity_provider.signing_keys",
    "raftlog.broker.security.passwords.successes",
    "raftlog.broker.security.unauthenticated",
    "raftlog.system.newcomers",
    "raftlog.api",
    "raftlog.backup.batches",
    "raftlog.backup.chain",
    "raftlog.backup.format",
    "raftlog.http2.address_rates",
    "raftlog.http2.admission",
    "raftlog.http2.core",
    "raftlog.http2.turns",
    "raftlog.client.producing.accumulator",
    "raftlog.client.producing.batch",
    "raftlog.client.producing.sequencer",
    "raftlog.client.producing.partition_queue",
    "raftlog.client.consuming.reader",
    "raftlog.client.consuming.records",
    "http_api.web.connections",
    "jepsen_like.checkers",
    "jepsen_like.histories.edn",
    "jepsen_like.histories.history",
    "jepsen_like.workloads.generators",
    "jepsen_like.nemeses.damage",
    "jepsen_like.nemeses.plans",
    "jepsen_like.nemeses.steps",
    "jepsen_like.nemeses.targets",
    "spark_source.options",
    "spark_source.reading",
)
"""Folders, and files of folders that are not pure as a whole."""
NAMES_A_CLOCKS_VALUES = "spark_source.reading.filters"
"""It compares timestamps of a query with `datetime`'s, and reads no clock."""

IMPURE_MODULES = {
    "asyncio", "os", "time", "datetime", "random", "secrets", "uuid", "threading", "socket", "select", "logging",
    "structlog", "subprocess", "concurrent", "signal", "multiprocessing",
}  # fmt: skip

# Shells that the simulator runs unchanged: their access to the outside world must come through their constructors.
SIMULATED = (
    "metadata",
    "partitions",
    "raftlog.broker.explain.history",
    "raftlog.broker.wiring",
    "raftlog.broker.changes.batches",
    "raftlog.broker.changes.group_answers",
    "raftlog.broker.changes.group_batches",
    "raftlog.broker.changes.groups",
    "raftlog.broker.changes.replies",
    "raftlog.broker.changes.transaction_batches",
    "raftlog.broker.changes.transaction_pieces",
    "raftlog.broker.changes.transactions",
    "raftlog.broker.changes.transaction_reports",
)
SIMULATED_EXCEPT = ("metadata.quorum_thread", "metadata.raft.pysyncobj")

# call → modules that may make it
BANNED_CALLS: dict[str, tuple[str, ...]] = {
    "open": (
        "raftlog.system.disk",
        "raftlog.system.thread_times",
        "raftlog.cli",
        "raftlog.broker.node.settings_file",
        "raftlog.broker.segment_dump",
        "raftlog.broker.security.identity_provider.key_sources",
        "raftlog.client",
        "jepsen_like",
        "spark_source",
    ),
    # The audit file, profiles, archives for support and the files of a new node lie outside of data folders, and are
    # created with their modes.
    "os.open": (
        "raftlog.system.disk",
        "raftlog.backup.storage",  # pyarrow writes files and folders, but does not make them durable
        "raftlog.broker.security.audit.log",
        "raftlog.cli.terminal.profiles",
        "raftlog.cli.nodes.pem_files",
        "raftlog.cli.doctor.bundle",
        "jepsen_like.clusters.power_loss",
    ),
    "os.fsync": (
        "raftlog.system.disk",
        "raftlog.backup.storage",
        "raftlog.cli.doctor.disk",  # the latency of an fsync is measured, on a file without a name
        "raftlog.cli.nodes.pem_files",
        "jepsen_like.clusters.power_loss",
        "jepsen_like.nemeses",
    ),
    "os.fdatasync": ("raftlog.system.disk", "jepsen_like.clusters.disk_faults"),
    "os.rename": ("raftlog.system.disk",),
    "os.replace": ("raftlog.system.disk", "raftlog.cli.terminal.profiles"),
    "time.time": ("raftlog.system.clock", "raftlog.client", "raftlog.cli", "jepsen_like"),
    "time.time_ns": (
        "raftlog.system.clock",
        "raftlog.client",
        "raftlog.backup",
        "raftlog.cli",
        "jepsen_like",
        "http_api",
    ),
    "time.monotonic": (
        "raftlog.system.clock",
        "raftlog.system.runtime",
        "raftlog.client",
        "raftlog.cli",
        "jepsen_like",
        "http_api",
    ),
    "time.sleep": ("raftlog.cli", "jepsen_like"),
    "pickle.loads": (),
    "pickle.load": (),
    "eval": (),
    "exec": (),
}


def is_pure(source: Source) -> bool:
    if source.name == NAMES_A_CLOCKS_VALUES:
        return False
    return any(source.name == name or source.name.startswith(name + ".") for name in PURE)


@pytest.mark.parametrize("source", [s for s in sources() if is_pure(s)], ids=lambda source: source.name)
def test_cores_are_pure(source: Source) -> None:
    impure = [
        f"{source.relative}:{line} {name}" for name, line in source.imports if name.partition(".")[0] in IMPURE_MODULES
    ]
    assert impure == []
    coroutines = [n.lineno for n in ast.walk(source.tree) if isinstance(n, ast.AsyncFunctionDef | ast.Await)]
    assert coroutines == [], f"{source.relative}: a core has no coroutine"


@pytest.mark.parametrize(
    "source",
    [s for s in sources() if s.name.startswith(SIMULATED) and not s.name.startswith(SIMULATED_EXCEPT)],
    ids=lambda source: source.name,
)
def test_simulated_shells_get_the_outside_world_by_constructor(source: Source) -> None:
    impure = [
        f"{source.relative}:{line} {name}"
        for name, line in source.imports
        if name.partition(".")[0] in IMPURE_MODULES - {"structlog", "logging"}
    ]
    assert impure == []


@pytest.mark.parametrize("source", sources(), ids=lambda source: source.name)
def test_banned_calls_stay_at_home(source: Source) -> None:
    found = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in BANNED_CALLS and not source.name.startswith(BANNED_CALLS[name] or ("\0",)):
                found.append(f"{source.relative}:{node.lineno} {name}")
    assert found == []


def test_every_pure_module_is_found_or_planned() -> None:
    """A renamed core must not drop out of the list unnoticed."""
    names = {source.name for source in sources()}
    missing = [p for p in PURE if not any(n == p or n.startswith(p + ".") for n in names)]
    assert missing == []
