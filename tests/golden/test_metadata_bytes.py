"""The bytes of commands, answers and snapshots. A difference here is either a new version or a bug.

`python -m tests.golden.test_metadata_bytes` writes the files of the current version.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from metadata.commands import cluster as c
from metadata.commands import envelope, results
from metadata.commands import fields as parts
from metadata.commands import groups as g
from metadata.commands import instances as i
from metadata.commands import leases as le
from metadata.commands import replicas as m
from metadata.commands import security as s
from metadata.commands import transactions as t
from metadata.commands.envelope import decode, decode_result, encode, encode_result
from metadata.commands.results import TransactionAnswer
from metadata.image.invariants import check
from metadata.records.security import QuotaLimits
from metadata.snapshot.encoder import encode_snapshot
from raftlog.model import BrokerId, Endpoint, TopicId
from raftlog.security.acls import Operation, PatternType, Permission, ResourceType
from raftlog.transactions import TransactionKey
from raftlog.wire import GroupMoves, OffsetMove, PositionMove, TopicEnds, TransactionOutput
from tests.support.metadata.at_once import decode_snapshot
from tests.support.metadata.cluster import TOPIC, Cluster, directory, report
from tests.support.metadata.security import do, put_token, put_user, rule
from tests.unit.metadata.snapshot.test_snapshot import busy

FOLDER = pathlib.Path(__file__).parent
COMMANDS = FOLDER / "metadata_commands_v1.txt"
SNAPSHOT = FOLDER / "metadata_snapshot_v11.txt"
SNAPSHOT_WITH_SECURITY = FOLDER / "metadata_snapshot_v10.txt"
SNAPSHOT_WITH_TIME = FOLDER / "metadata_snapshot_v9.txt"
SNAPSHOT_WITH_TRANSACTIONS = FOLDER / "metadata_snapshot_v8.txt"
SNAPSHOT_WITHOUT_TRANSACTIONS = FOLDER / "metadata_snapshot_v4.txt"
OLD_SNAPSHOTS = (FOLDER / "metadata_snapshot_v1.txt", FOLDER / "metadata_snapshot_v2.txt")

_N: Any = int
SAMPLES: list[envelope.Command] = [
    c.RegisterBroker.of(
        BrokerId(1),
        directory(7),
        3,
        api=Endpoint("10.0.0.1", 9640),
        data=Endpoint("10.0.0.1", 9641),
        rack="east",
        feature_level=1,
        reports=[report(2, 300), report(-1, 0, cut=True)],
    ),
    c.FenceBroker(_N(1), _N(70_000)),
    c.UnfenceBroker(_N(1), _N(70_000)),
    c.CreateTopic("orders", TOPIC, ((_N(0), _N(1)), (_N(1), _N(0))), (("retention.ms", "1000"),)),
    c.DeleteTopic(TOPIC),
    c.AlterTopic(TOPIC, (("flush", "os"),), ("retention.ms",)),
    c.AddPartitions(TOPIC, 2, ((_N(2), _N(0)),)),
    c.ElectLeaders(
        (parts.Election(TOPIC, 0, _N(1), _N(9), _N(4)), parts.Election(TOPIC, 1, _N(2), _N(9), _N(5), True))
    ),
    c.AlterIsr(TOPIC, 0, _N(1), _N(9), _N(3), _N(12), (parts.IsrMember(_N(0), _N(8)), parts.IsrMember(_N(1), _N(9)))),
    c.GrantProducerIds(_N(1), _N(9), 1000),
    c.SetFeatureLevel(2),
    c.NoOp(),
    m.AlterReassignments((m.Reassignment(TOPIC, 0, _N(4), (_N(1), _N(2))), m.Reassignment(TOPIC, 1, _N(5), ()))),
    m.BeginMoves((m.Move(TOPIC, 0, _N(5)),)),
    m.UnregisterBroker(_N(1), _N(9)),
    m.ElectUnclean(TOPIC, 0, _N(1), _N(9), _N(4)),
    m.ReportLoss(TOPIC, 0, _N(1), _N(9), _N(3)),
    m.RenewLeadership(TOPIC, 0, _N(1), _N(9), _N(3)),
    g.ChangeGroups(
        (
            g.Join("readers", "m-1", "", "app", "10.0.0.9", ("orders",), "o.*", "uniform", 45_000, 300_000),
            g.Leave("readers", "m-1", 17, 1_700_000_000_000),
            g.Fence("readers", "m-1", 17, 6, 1_700_000_000_000),
            g.Release("readers", "m-1", 17, 18, (g.TopicPartitions(TOPIC, (0, 2)),)),
            g.Assign("readers", 17, (g.Target("m-1", (g.TopicPartitions(TOPIC, (0, 1)),)),)),
            g.Commit("readers", "m-1", 17, 18, 1_700_000_000_000, (g.OffsetToCommit(TOPIC, 0, _N(7), 3, "here"),)),
            g.Reset("readers", -1, 1_700_000_000_000, (g.OffsetToCommit(TOPIC, 1, _N(0)),)),
            g.Expire("readers", 17, 6, 1_600_000_000_000),
            g.Delete("readers"),
        )
    ),
    m.ThrottleReassignments((m.Reassignment(TOPIC, 0, _N(4), (_N(1), _N(2))),), 10_000_000, None),
    t.ChangeTransactions(
        (
            t.Commit(
                (
                    TransactionOutput(_N(7), _N(2), (TopicEnds(TOPIC, (0, 3), (_N(70), _N(71))),)),
                    TransactionOutput(_N(8), _N(0), ()),
                ),
                (GroupMoves("readers", "m-1", 17, 18, (OffsetMove(TOPIC, 1, -1, _N(5), 3, "here"),)),),
                (PositionMove("spark/q", 41, 42),),
                "spark/q/42",
                1_700_000_000_000,
            ),
            t.Abort((TransactionKey(_N(7), _N(2)), TransactionKey(_N(8), _N(0))), 1_700_000_000_000),
            t.Marked(TOPIC, 0, _N(3), (TransactionKey(_N(7), _N(2)),)),
            t.Initialize("app", 60_000, 1_700_000_000_000, b"attempt-number-1", TransactionKey(_N(7), _N(2))),
            t.OpenBlock("spark/q/43", 1_000, 60_000),
            t.RetireBlock("spark/q/43"),
            t.AbortOverdue((TransactionKey(_N(9), _N(0)),)),
            t.StagePart(b"commit-number-01", 0, t.encode_piece(t.Piece((TransactionOutput(_N(8), _N(0), ()),), ()))),
            t.CommitStaged(b"commit-number-01", 1, t.digest_of([b"piece"]), (), "", 1_700_000_000_000),
            t.Expire(
                6,
                (t.ExpiredBlock(_N(1_000), 17),),
                (t.ExpiredProducer("app", _N(7), _N(2)),),
                (t.ExpiredParts(b"commit-number-01", 1),),
            ),
            t.RemovePosition("spark/q", 42),
        )
    ),
    c.ReportRoom(_N(1), _N(9), True),
    c.AdvanceTime(6, 1_700_000_000_000, 1_700_000_010_000, 1_700_000_010_500),
    c.ReplaceRegistration(
        *(_N(1), directory(7), 3, parts.ListeningAt("10.0.0.1", 9640), parts.ListeningAt("10.0.0.1", 9641), "east", 5),
        parts.PackedReports.of([report(2, 300)]).packed,
        _N(70_000),
    ),
    s.ChangeSecurity(
        (
            put_user("alice", 17, superuser=True),
            s.PutUser("bob", False, None, "", 0),
            s.RemoveUser("carol"),
            put_token(1, "alice", 1_700_000_000_000, description="the nightly job"),
            s.RemoveToken("abcdefgh2345"),
            s.AddRules.of((rule(), rule("Group:g", "x", kind=ResourceType.GROUP, pattern=PatternType.PREFIXED))),
            s.RemoveRules.of((rule(host="10.0.0.1", permission=Permission.DENY, operation=Operation.ALL),)),
            s.PutQuota(
                "User:alice",
                QuotaLimits(
                    bytes_in_per_second=1,
                    bytes_out_per_second=2,
                    requests_per_second=3,
                    connections=4,
                    open_transactions=5,
                    groups=6,
                    topics_created_per_hour=7,
                    partitions_created_per_hour=8,
                    metadata_commands_per_second=9,
                ),
            ),
            s.PutQuota("Address:*", QuotaLimits(connections=0)),
            s.RemoveQuota("Address:10.1.2.3"),
        )
    ),
    s.BootstrapSecurity(put_user("root", superuser=True), put_token(2, "root")),
    g.ChangeGroupsAs(
        (g.Delete("readers"), g.Delete("others"), g.DeleteOffsets("third", (g.TopicPartitions(TOPIC, (0, 2)),))),
        ("alice", "", ""),
    ),
    t.ChangeTransactionsAs((t.RetireBlock("spark/q/1"),), ("alice",)),
    c.GrantProducerIdsTo(_N(1), _N(9), 1000, "alice"),
    c.RestoreTopic("orders", TOPIC, ((_N(0), _N(1)),), (("retention.ms", "1000"),), 500),
    i.ChangeGroupsAndInstances(
        (
            i.PutInstance("readers", "c1", "json", "latest", True, 10, 1_000, -1, _N(1), _N(9), 1_700_000_000_000),
            i.ClaimInstance("readers", "c1", 70_001, _N(2), _N(10)),
            i.SubscribeInstance("readers", "c1", 70_002, ("orders",), "o.*", (), 1_700_000_000_000),
            i.SubscribeInstance(
                "readers", "c2", 70_002, (), "", (g.TopicPartitions(TOPIC, (0, 2)),), 1_700_000_000_000
            ),
            i.RemoveInstance("readers", "c1", 70_003, 1_700_000_000_000),
            g.Delete("readers"),
            le.BeginLeases(TOPIC, 0, "workers", 5, 1_700_000_000_000),
            le.TakeLease(TOPIC, 0, "workers", 2**61 + 1, -1, 5, 10, 30_000, 1_700_000_000_000),
            le.AcknowledgeLease(TOPIC, 0, "workers", 2**61 + 1, 6, 1_700_000_000_000),
            le.RenewLease(TOPIC, 0, "workers", 2**61 + 1, 0),
        ),
        ("alice", "", "", "alice", "", "", "alice", "", "", ""),
    ),
]
ANSWERS: list[results.CommandResult] = [
    results.Done(),
    results.Registered(_N(70_000)),
    results.IsrAltered(_N(13)),
    results.ProducerIdsGranted(_N(1000), 1000),
    results.Elected((None, results.Refused("not_eligible", "nobody"))),
    results.Refused("topic_exists", "it does"),
    results.ReassignmentsAltered((None, results.Refused("not_eligible", "it is fenced"))),
    results.GroupsChanged((results.RefusedChange(2, "member_fenced", "it joined again"),)),
    results.TransactionsChanged(
        (
            TransactionAnswer(0, "", "", (TransactionKey(_N(7), _N(3)),), 0),
            TransactionAnswer(1, "offset_moved", "the group is at 6", (), 0),
        )
    ),
]


def with_a_group() -> Cluster:
    """The state that older versions could hold, and a group in which every field is set."""
    cluster = busy()
    join = g.Join("readers", "m-1", "i-1", "app", "10.0.0.9", ("orders",), "o.*", "range", 45_000, 300_000)
    cluster.do(g.ChangeGroups((join,)))
    incarnation = cluster.image.index
    target = g.Target("m-1", (g.TopicPartitions(TOPIC, (0, 1)),))
    cluster.do(g.ChangeGroups((g.Assign("readers", incarnation, (target,)),)))
    offset = g.OffsetToCommit(TOPIC, 1, _N(7), 3, "here")
    cluster.do(
        g.ChangeGroups((g.Commit("readers", "m-1", incarnation, cluster.image.index, 1_700_000_000_000, (offset,)),))
    )
    return cluster


def with_transactions() -> Cluster:
    """Adds a state of transactions in which every field is set."""
    cluster = with_a_group()
    end = (TopicEnds(TOPIC, (0, 1), (_N(70), _N(71))),)
    staged = t.encode_piece(t.Piece((TransactionOutput(_N(8), _N(0), ()),), ()))
    begun = cluster.do(t.ChangeTransactions((t.Initialize("app", 60_000, 1_700_000_000_000, b"attempt-number-1"),)))
    assert isinstance(begun, results.TransactionsChanged)
    app = begun.answers[0].keys[0]
    first = cluster.image.next_producer_id
    cluster.do(
        t.ChangeTransactions(
            (
                t.OpenBlock("spark/q/42", 10, 60_000),
                t.OpenBlock("spark/q/43", 10, 70_000),
                t.Abort((TransactionKey(_N(first + 4), _N(0)),), 1_700_000_000_000),
                t.Commit(
                    (
                        TransactionOutput(app.producer_id, app.producer_epoch, end),
                        TransactionOutput(_N(first + 11), _N(0), end),
                    ),
                    (),
                    (PositionMove("spark/q", -1, 42),),
                    "spark/q/43",
                    1_700_000_000_001,
                ),
                t.StagePart(b"commit-number-01", 1, staged),
            )
        )
    )
    return cluster


def with_time(level: int = 5) -> Cluster:
    """Adds a topic that was created at this feature level, and the cluster's time."""
    cluster = with_transactions()
    for number in range(3):
        cluster.do(cluster.registration(number, feature_level=level))
        cluster.unfence(number)
    cluster.do(c.SetFeatureLevel(level))
    cluster.do(c.CreateTopic("payments", TopicId(b"topic-number-009"), ((_N(0), _N(1)),), (("retention.ms", "1000"),)))
    cluster.do(c.AdvanceTime(cluster.term, 0, 1_700_000_000_000, 1_700_000_000_000))
    cluster.do(c.AdvanceTime(cluster.term, 1_700_000_000_000, 1_700_000_010_000, 1_700_000_010_500))
    return cluster


def with_security(level: int = s.SECURITY_FEATURE_LEVEL) -> Cluster:
    """Adds users, tokens, rules and quotas in which every field is set."""
    cluster = with_time(level)
    do(
        cluster,
        put_user("root", superuser=True),
        s.PutUser("app", False, None, "", 0),
        put_token(1, "app", 1_800_000_000_000, description="the nightly job"),
        put_token(2, "root"),
        s.AddRules.of(
            (
                rule("User:app", "orders", Operation.WRITE, host="10.0.0.1"),
                rule("Group:g", "x", kind=ResourceType.GROUP, pattern=PatternType.PREFIXED, permission=Permission.DENY),
            )
        ),
        s.PutQuota("User:*", QuotaLimits(bytes_in_per_second=1_000_000, connections=100)),
        s.PutQuota("Address:10.0.0.1", QuotaLimits(requests_per_second=10)),
    )
    join = g.Join("hers", "m-1", "", "app", "10.0.0.1", ("orders",), "", "uniform", 10_000, 30_000)
    cluster.do(g.ChangeGroupsAs((join,), ("app",)))
    cluster.do(
        t.ChangeTransactionsAs(
            (
                t.Initialize("its-own", 60_000, 1_700_000_000_000, None),
                t.OpenBlock("", 10, 60_000),
                t.Commit((), (), (PositionMove("its", -1, 1),), "", 1_700_000_000_001),
            ),
            ("app", "app", "root"),
        )
    )
    cluster.do(c.GrantProducerIdsTo(_N(0), cluster.incarnation(0), 100, "app"))
    return cluster


def of_the_newest_level() -> Cluster:
    """Adds HTTP consumers and leases in which every field is set."""
    cluster = with_security(i.INSTANCES_FEATURE_LEVEL)
    owner = (_N(0), cluster.incarnation(0))

    def change(*changes: i.AnyGroupChange) -> int:
        done = cluster.do(i.ChangeGroupsAndInstances(changes, ("app",) * len(changes)))
        assert done == results.GroupsChanged(())
        return cluster.image.index

    made = change(
        i.PutInstance("theirs", "c1", "json", "latest", True, 10, 1_000, -1, *owner, 1_700_000_000_000),
        i.PutInstance("own", "c2", "binary", "earliest", False, 1, 500, -1, *owner, 1_700_000_000_000),
    )
    change(
        i.SubscribeInstance("theirs", "c1", made, ("orders",), "o.*", (), 1_700_000_000_000),
        i.SubscribeInstance("own", "c2", made, (), "", (g.TopicPartitions(TOPIC, (1,)),), 1_700_000_000_000),
        le.TakeLease(TOPIC, 0, "workers", 2**61 + 1, -1, 5, 10, 30_000, 1_700_000_000_000),
        le.TakeLease(TOPIC, 0, "workers", 2**61 + 2, -1, 10, 12, 60_000, 1_700_000_000_000),
    )
    return cluster


def render() -> str:
    """Return one line for each name and its bytes."""
    session = envelope.ClientSession(b"session-number-1", 5, 400)
    lines = [f"{type(sample).__name__} {encode(sample).hex()}" for sample in SAMPLES]
    lines.append(f"NoOp+term+session {encode(c.NoOp(), term=6, session=session).hex()}")
    lines += [f"{type(answer).__name__} {encode_result(answer).hex()}" for answer in ANSWERS]
    return "\n".join(lines) + "\n"


def test_every_command_and_answer_has_a_sample() -> None:
    assert [type(sample) for sample in SAMPLES] == list(envelope.COMMAND_TYPES)
    assert {type(answer) for answer in ANSWERS} == set(results.CommandResult.__args__)


def test_commands_and_answers_are_written_as_before() -> None:
    assert render() == COMMANDS.read_text()


def test_commands_and_answers_are_read_as_before() -> None:
    lines = [line.split() for line in COMMANDS.read_text().splitlines()]
    read = [decode(bytes.fromhex(packed)).command for _, packed in lines[: len(SAMPLES)]]
    assert read == SAMPLES
    assert decode(bytes.fromhex(lines[len(SAMPLES)][1])).term == 6
    assert [decode_result(bytes.fromhex(packed)) for _, packed in lines[len(SAMPLES) + 1 :]] == ANSWERS


@pytest.mark.parametrize(
    ("path", "cluster"),
    [
        (SNAPSHOT, of_the_newest_level),
        (SNAPSHOT_WITH_SECURITY, with_security),
        (SNAPSHOT_WITH_TIME, with_time),
        (SNAPSHOT_WITH_TRANSACTIONS, with_transactions),
        (SNAPSHOT_WITHOUT_TRANSACTIONS, with_a_group),
    ],
)
def test_a_snapshot_is_written_and_read_as_before(path: pathlib.Path, cluster: Callable[[], Cluster]) -> None:
    packed = bytes.fromhex(path.read_text())
    assert encode_snapshot(cluster().image) == packed
    read = decode_snapshot(packed)
    assert encode_snapshot(read) == packed
    check(read)


def test_snapshots_of_older_versions_are_read() -> None:
    for path in OLD_SNAPSHOTS:
        read = decode_snapshot(bytes.fromhex(path.read_text()))
        assert encode_snapshot(read) == encode_snapshot(busy().image)


if __name__ == "__main__":
    COMMANDS.write_text(render())
    SNAPSHOT.write_text(encode_snapshot(of_the_newest_level().image).hex() + "\n")
    SNAPSHOT_WITH_SECURITY.write_text(encode_snapshot(with_security().image).hex() + "\n")
    SNAPSHOT_WITH_TIME.write_text(encode_snapshot(with_time().image).hex() + "\n")
    SNAPSHOT_WITH_TRANSACTIONS.write_text(encode_snapshot(with_transactions().image).hex() + "\n")
    SNAPSHOT_WITHOUT_TRANSACTIONS.write_text(encode_snapshot(with_a_group().image).hex() + "\n")
