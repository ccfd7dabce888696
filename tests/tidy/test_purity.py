"""Pure cores touch no clock, randomness, disk, socket or thread; outside them each such call has one allowed home."""

from __future__ import annotations

import ast

import pytest

from .sources import Source, sources

PURE = (
    "metadata.command",
    "metadata.commands",
    "metadata.image",
    "metadata.controller",
    "metadata.groups",
    "metadata.sessions",
    "metadata.placement",
    "metadata.view",
    "metadata.tickets",
    "metadata.group_table",
    "metadata.snapshot",
    "metadata.quorum_protocol",
    "partitions.effects",
    "partitions.leader",
    "partitions.follower",
    "partitions.replica",
    "partitions.leader_followers",
    "partitions.isr",
    "partitions.leader_epochs",
    "partitions.producer_state",
    "partitions.transaction_state",
    "partitions.aborted_ranges",
    "partitions.replication_protocol",
    "raftlog.model",
    "raftlog.errors",
    "raftlog.record_batch",
    "raftlog.columns",
    "raftlog.wire",
    "raftlog.http2.connection",
    "raftlog.client.accumulator",
    "raftlog.client.sequencer",
    "raftlog.client.partition_queue",
    "raftlog.client.reader",
    "raftlog.client.consumed",
    "jepsen_like.checkers",
    "jepsen_like.edn",
    "jepsen_like.generators",
    "jepsen_like.history",
    "jepsen_like.nemeses.damage",
    "jepsen_like.nemeses.plans",
    "jepsen_like.nemeses.steps",
    "jepsen_like.nemeses.targets",
    "spark_source.planning",
    "spark_source.log_bounds",
    "spark_source.losses",
    "spark_source.offsets",
    "spark_source.option_values",
    "spark_source.planning",
    "spark_source.record_columns",
    "spark_source.source_options",
    "spark_source.splitting",
    "spark_source.starting",
)
IMPURE_MODULES = {
    "asyncio", "os", "time", "datetime", "random", "secrets", "uuid", "threading", "socket", "select", "logging",
    "structlog", "subprocess", "concurrent", "signal", "multiprocessing",
}  # fmt: skip

# Shells that the simulator runs as they are: everything of the world must come through their constructors.
SIMULATED = ("metadata", "partitions", "raftlog.broker.wiring", "raftlog.broker.transaction_reports")
SIMULATED_EXCEPT = ("metadata.quorum_thread", "metadata.quorum_streams", "metadata.pysyncobj")

# call → modules that may make it
BANNED_CALLS: dict[str, tuple[str, ...]] = {
    "open": (
        "raftlog.disk",
        "raftlog.cli",
        "raftlog.broker.node_main",
        "raftlog.client",
        "jepsen_like",
        "spark_source",
    ),
    "os.open": ("raftlog.disk", "jepsen_like.power_loss"),
    "os.fsync": ("raftlog.disk", "jepsen_like.power_loss", "jepsen_like.nemeses"),
    "os.fdatasync": ("raftlog.disk", "jepsen_like.clusters.disk_faults"),
    "os.rename": ("raftlog.disk",),
    "os.replace": ("raftlog.disk",),
    "time.time": ("raftlog.clock", "raftlog.client", "raftlog.cli", "jepsen_like"),
    "time.time_ns": ("raftlog.clock", "raftlog.client", "raftlog.cli", "jepsen_like", "http_api"),
    "time.monotonic": ("raftlog.clock", "raftlog.runtime", "raftlog.client", "raftlog.cli", "jepsen_like", "http_api"),
    "time.sleep": ("raftlog.cli", "jepsen_like"),
    "pickle.loads": (),
    "pickle.load": (),
    "eval": (),
    "exec": (),
}


def is_pure(source: Source) -> bool:
    return any(source.name == name or source.name.startswith((name + "_", name + ".")) for name in PURE)


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
def test_what_the_simulator_runs_takes_the_world_by_constructor(source: Source) -> None:
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
    """A renamed core must not slip out of the list unnoticed."""
    names = {source.name for source in sources()}
    missing = [p for p in PURE if not any(n == p or n.startswith((p + "_", p + ".")) for n in names)]
    assert missing == []
