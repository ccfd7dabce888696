"""One history against one model: the checker that the model's name stands for."""

from __future__ import annotations

from jepsen_like.histories.formats import Loaded
from raftlog.errors import InvalidRequest

from .checkers import kafka, linearizability
from .checkers.kafka_log import WORK
from .checkers.models import model
from .checkers.verdict import Verdict


def check(loaded: Loaded, name: str, kind: str, *, steps: int = linearizability.STEPS_MAX) -> Verdict:
    """Raises `InvalidRequest` where the history is none of this model's, or has no operation at all: of nothing
    nothing can be said, and a file in another format than was named must not pass. One of faults alone is valid."""
    if not loaded.operations:
        raise InvalidRequest("invalid_request", f"there is no operation in it, read as {kind}")
    if name == "kafka":
        if not any(one.f in WORK for one in loaded.operations):
            first = f"but {loaded.operations[0].f:.40}: it is no log's history"
            raise InvalidRequest("invalid_request", f"there is no {', '.join(WORK)} in it, {first}")
        ww_deps = bool(loaded.options.get("ww_deps", False))
        transactional = any(one.f == "txn" for one in loaded.operations)
        return kafka.check(loaded.operations, ww_deps=ww_deps, strict=kind != "json", transactional=transactional)
    return linearizability.check(loaded.operations, model(name, etcd=kind == "etcd-log"), steps=steps)
