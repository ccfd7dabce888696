"""Tests stop at the public faces of the product: what they need to know, its `facts()` and properties say.

A test that reads a private attribute breaks whenever the class behind it is redesigned, though nothing is wrong. So a
test drives a class by its ports, replaces a port by a fake, or takes the inner object from the class that makes it
(`tests/support/recorded.py`). An access that stays is listed here, with the reason why no public face can replace it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping

from .sources import ROOT, sources

PRODUCT = ("raftlog", "metadata", "partitions", "http_api", "spark_source")

LATE_CALLBACK = "the loop that a connection has left may still run this callback; no peer can provoke that moment"
PLANTED = "the test plants a known bug inside this decision, to show that its consequence is found"
BROKEN_TRUTH = "the test falsifies what the simulator knows, to show that the invariant can fail"
BUG = "the test raises an exception inside this step, as a bug in it would"
HARNESS = "of the harness, which has this private name in common with the product"
FRESH_CLASS = "the class remembers for the whole process that the kernel refused a call"
TUNED = "the test sets a number that is fixed in the product and too large to reach"

LEFT: Mapping[tuple[str, str], str] = {
    ("contracts/test_disk.py", "_dsync"): FRESH_CLASS,
    ("integration/http2/test_moving.py", "_events"): LATE_CALLBACK,
    ("integration/http2/test_moving.py", "_flush_due"): LATE_CALLBACK,
    ("integration/http2/test_moving.py", "_flush_now"): LATE_CALLBACK,
    ("integration/http2/test_moving.py", "_on_turn"): LATE_CALLBACK,
    ("integration/http2/test_moving.py", "_shell"): LATE_CALLBACK,
    ("integration/http2/test_moving.py", "_wake_due"): LATE_CALLBACK,
    ("integration/http2/test_reconnect.py", "_failures"): "twelve failures in a row would take twenty seconds",
    ("integration/http2/test_reconnect.py", "_handler"): "a recorder records one stream, and the dialer opens a second",
    (
        "integration/http_api/test_deletions.py",
        "_latest_offsets",
    ): "the deletion comes between two requests of a call",
    ("integration/test_paced_server.py", "_sockets"): "of asyncio's server, whose socket is replaced by a short one",
    ("property/metadata/test_safety.py", "_begin"): PLANTED,
    ("property/metadata/test_safety.py", "_cannot_let_go"): PLANTED,
    ("property/metadata/test_safety.py", "_settle_the_past"): PLANTED,
    ("simulation/test_invariants_of_replicas.py", "_deleted"): BROKEN_TRUTH,
    ("simulation/test_invariants_of_replicas.py", "_marks"): BROKEN_TRUTH,
    ("simulation/test_invariants_of_replicas.py", "_moved"): BROKEN_TRUTH,
    ("simulation/test_invariants_of_replicas.py", "_seen"): BROKEN_TRUTH,
    ("support/client/stubs.py", "_twin_of"): "the generator of the stubs must know the class behind each twin",
    ("support/clusters/node_without_fsync.py", "_dsync"): FRESH_CLASS,
    ("unit/jepsen_like/nemeses/test_power.py", "_began"): HARNESS,
    ("unit/jepsen_like/nemeses/test_power.py", "_write"): HARNESS,
    ("unit/metadata/image/test_transaction_stories.py", "_OPEN"): PLANTED,
    ("unit/metadata/image/test_transaction_stories.py", "_group_refusal"): PLANTED,
    ("unit/metadata/image/test_transaction_stories.py", "_position_refusal"): PLANTED,
    ("unit/metadata/image/test_transaction_stories.py", "_standing_refusal"): PLANTED,
    ("unit/metadata/quorum_thread/test_thread.py", "_thread"): "a sleeping thread stands for one whose disk hangs",
    ("unit/partitions/producers/test_transactions.py", "_BLOCK"): TUNED,
    ("unit/partitions/replica/test_transactions.py", "_verdicts"): "the test cluster always has decisions",
    ("unit/partitions/replication/test_room.py", "_reserved"): "the test cluster takes no reserve of its own",
    ("unit/raftlog/broker/test_unforeseen_loops.py", "_answers"): BUG,
    ("unit/raftlog/broker/test_unforeseen_loops.py", "_on_change"): BUG,
    ("unit/raftlog/broker/test_unforeseen_loops.py", "_take_off"): BUG,
    (
        "unit/raftlog/http2/test_limits.py",
        "_ping_due",
    ): "a PING due at that moment would hide the verdict",
}
"""File below `tests/` and private name → the reason why its uses stay."""


NAMED_TUPLES = ("_replace", "_fields", "_asdict", "_make")
"""Methods of named tuples, public in spite of their names."""

BY_NAME = ("getattr", "setattr", "delattr", "setitem", "delitem", "break_once")
"""Calls that reach an attribute by its name."""

OF_PYSYNCOBJ = ("_destroy",)
"""Methods of pysyncobj's own journal that the tests of the stock library call; the product's journal overrides them."""


def private_names_of(node: ast.AST) -> Iterator[str]:
    """Yield the private name that a node defines, if it does: an attribute, method, function or constant."""
    name = ""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        name = node.name
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        name = node.attr
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        name = node.id
    if name.startswith("_") and not name.startswith("__"):
        yield name


def private_names(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a module defines."""
    for node in ast.walk(tree):
        yield from private_names_of(node)


@functools.cache
def of_the_product() -> frozenset[str]:
    """All private names that the product defines."""
    return frozenset(
        name for source in sources() if source.name.startswith(PRODUCT) for name in private_names(source.tree)
    )


def own_names(tree: ast.AST) -> Iterator[str]:
    """Yield the private names that a test module gives to what is its own: its functions, classes and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            continue
        yield from private_names_of(node)


def accesses(tree: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield each use of a private attribute of another object that only the product can define, with its name.

    A use reads it, replaces it, or names it in a call such as `monkeypatch.setattr(owner, "_name", value)`.
    """
    names = of_the_product() - {*own_names(tree), *NAMED_TUPLES, *OF_PYSYNCOBJ}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if node.attr in names and ast.unparse(node.value) not in ("self", "cls"):
                yield node.attr, node
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in BY_NAME:
            for argument in node.args:
                if isinstance(argument, ast.Constant) and argument.value in names:
                    yield argument.value, node


@functools.cache
def found() -> Mapping[tuple[str, str], list[str]]:
    """File and private name → each access as `line expression`."""
    listed: dict[tuple[str, str], list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        name = str(path.relative_to(ROOT / "tests"))
        for private, node in accesses(ast.parse(path.read_text())):
            listed.setdefault((name, private), []).append(f"{node.lineno} {ast.unparse(node)}")
    return listed


def test_no_private_attribute_is_reached_without_a_reason() -> None:
    more = {place: lines for place, lines in found().items() if place not in LEFT}
    assert more == {}, "give the class a public face: a `facts()`, a property or a callback"


def test_every_reason_is_that_of_an_access() -> None:
    assert [place for place in LEFT if place not in found()] == [], "remove these from LEFT"
