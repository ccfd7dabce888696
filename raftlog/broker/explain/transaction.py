"""The explanation of a transaction: what it waits for. A pure core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from raftlog.api.explain import Explanation, Finding

from .facts import OpenFacts
from .wording import records, seconds

RANK = ("quorum_without_leader", "partition_without_leader", "transaction_overdue", "marker_waits", "transaction_open",
        "node_unanswered", "transaction_ended")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """A partition in which a transaction is open, or not marked yet."""

    name: str
    open: OpenFacts | None
    trouble: str = ""
    """Why the partition has no leader; empty if it has one."""
    waiting: int = 0
    """Records behind the transaction's first one that read_committed consumers do not see."""


@dataclass(frozen=True, slots=True)
class TransactionCase:
    """A named producer with its transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    standing: str
    """`undecided`, `committed` or `aborted`."""
    places: Sequence[Place]
    unmarked: int
    """The partitions in which a commit is not visible yet."""
    quorum_leader: int
    index: int
    now_ms: int
    asker: int
    used_ms: int = 0
    unanswered: Mapping[str, str] = field(default_factory=dict)


def explain_transaction(case: TransactionCase) -> Explanation:
    """Return what a transaction waits for."""
    findings = sorted(_findings(case), key=lambda one: RANK.index(one.code))
    return Explanation(
        "transaction",
        f"transactional id {case.transactional_id}",
        f"producer {case.producer_id}, epoch {case.producer_epoch}: {case.standing}, {len(case.places)} partitions",
        findings,
        node_id=case.asker,
        metadata_index=case.index,
        time_ms=case.now_ms,
        unanswered=dict(case.unanswered),
    )


def _findings(case: TransactionCase) -> list[Finding]:
    found = []
    if case.quorum_leader < 0:
        found.append(
            Finding(
                "quorum_without_leader",
                "critical",
                "the metadata quorum, which decides transactions, has no leader that this node knows",
                [],
                ["raftlog quorum describe on several nodes; start the voters that are down"],
            )
        )
    for place in case.places:
        if place.trouble:
            found.append(
                Finding(
                    "partition_without_leader",
                    "critical",
                    f"the transaction's records in {place.name} have no leader that could mark them: {place.trouble}",
                    [],
                    [f"raftlog explain {place.name}"],
                )
            )
    opened = [place for place in case.places if place.open is not None]
    if case.standing in ("committed", "aborted") and (opened or case.unmarked):
        found.append(_marker_waits(case, [place.name for place in case.places]))
    elif opened:
        found.append(_open(case, opened))
    for node, reason in case.unanswered.items():
        found.append(
            Finding(
                "node_unanswered",
                "warning",
                f"node {node} did not answer, so open records of partitions that it leads are not shown",
                [reason],
                [f"start node {node}, or wait for the election of other leaders"],
                int(node),
            )
        )
    if not opened and not case.unmarked:
        found.append(_ended(case))
    return found


def _open(case: TransactionCase, opened: Sequence[Place]) -> Finding:
    ages = [place.open.age for place in opened if place.open is not None]
    age = max(ages)
    timeout = case.timeout_ms / 1000
    where = ", ".join(f"{place.name} from offset {place.open.first_offset}" for place in opened[:5] if place.open)
    waiting = sum(place.waiting for place in opened)
    overdue = age > timeout
    since = f"for {seconds(age)}" if age >= 0 else "since before the present leaders"
    left = f"it is aborted by itself in about {seconds(max(0.0, timeout - age))}" if age >= 0 else ""
    return Finding(
        "transaction_overdue" if overdue else "transaction_open",
        "warning",
        f"the transaction is open {since}: it waits for its producer to commit or abort it, and holds back "
        f"read_committed consumers of {where}",
        [
            f"its timeout is {seconds(timeout)}" + (", which is over: the quorum aborts it now" if overdue else ""),
            *([left] if left and not overdue else []),
            f"{records(waiting)} wait behind it",
        ],
        [
            "let the producer end it",
            f"if the producer is gone: raftlog transaction abort --producer-id {case.producer_id}",
        ],
    )


def _marker_waits(case: TransactionCase, names: Sequence[str]) -> Finding:
    where = ", ".join(names[:5]) or f"{case.unmarked} partitions"
    return Finding(
        "marker_waits",
        "warning",
        f"the transaction is {case.standing}, and its marker is not below the high watermark everywhere yet: {where}",
        ["a leader writes the marker, and it counts once all in-sync replicas have fsynced it"],
        [*(f"raftlog explain {name}" for name in names[:3]), "none if this lasts for less than a second"],
    )


def _ended(case: TransactionCase) -> Finding:
    return Finding(
        "transaction_ended",
        "info",
        f"no transaction of {case.transactional_id} is open on a node that answered: it waits for nothing",
        [f"its producer last began or ended one {seconds(max(0, case.now_ms - case.used_ms) / 1000)} ago"]
        if case.used_ms
        else [],
    )
