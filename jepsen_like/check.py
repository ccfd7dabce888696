"""Checks one history with the checker of a model."""

from __future__ import annotations

from jepsen_like.histories.formats import Loaded
from raftlog.errors import InvalidRequest

from .checkers import kafka, linearizability
from .checkers.kafka_log import WORK
from .checkers.models import model
from .checkers.verdict import Verdict


def check(loaded: Loaded, name: str, kind: str, *, steps: int = linearizability.STEPS_MAX) -> Verdict:
    """Return the verdict on a history.

    Raises `InvalidRequest` if the model does not have its operations, or if it has none at all: a file in another
    format than the named one must not pass. A history of faults alone is valid.
    """
    if not loaded.operations:
        raise InvalidRequest("invalid_request", f"the file has no operation, read as {kind}")
    if name == "kafka":
        if not any(one.f in WORK for one in loaded.operations):
            first = f"but {loaded.operations[0].f:.40}: it is not the history of a log"
            raise InvalidRequest("invalid_request", f"the history has no {', '.join(WORK)}, {first}")
        ww_deps = bool(loaded.options.get("ww_deps", False))
        transactional = any(one.f == "txn" for one in loaded.operations)
        return kafka.check(loaded.operations, ww_deps=ww_deps, strict=kind != "json", transactional=transactional)
    return linearizability.check(loaded.operations, model(name, etcd=kind == "etcd-log"), steps=steps)
