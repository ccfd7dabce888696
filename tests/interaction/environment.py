"""Three brokers that act only on command: real partition managers and logs, and a real cluster image.

Messages wait on their links, disk work in each broker's worker, metadata at the quorum, and proposals until they are
applied. A story says what happens next; `README.md` lists the commands and columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from partitions.manager import Produced
from raftlog.errors import RaftlogError
from raftlog.model import Acks
from raftlog.ports import Part
from raftlog.records.batch import RecordBatch, encode, split_batches
from raftlog.version import FEATURE_LEVEL
from raftlog.wire import FetchedPartition, FetchPartition
from tests.support.metadata.cluster import TP

from .datadriven import Command
from .story_ports import LogQuorum
from .transactions import Transactions, describe_control
from .wires import bytes_of
from .world import Node

ACKS = {"all": Acks.ALL, "1": Acks.LEADER, "0": Acks.NONE}
COMPACTED = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "1000",
    "min.cleanable.dirty.ratio": "0",
    "segment.ms": "1000",
}
LIMIT = 10_000


class Environment(Transactions):
    """The brokers and the quorum of a story. `execute` runs one command and returns its output."""

    def execute(self, command: Command) -> str:
        method = getattr(self, "do_" + command.name.replace("-", "_"))
        method(*command.args, **command.options)
        self.scheduler.run()
        said, self._said = self._said, []
        return "\n".join(line.rstrip() for line in said)

    def check(self) -> None:
        """After every story, check the invariants that brokers can see themselves."""
        for node in self.nodes.values():
            if node.manager is not None:
                node.manager.check_invariants()

    def do_cluster(self, brokers: str = "3", min: str = "2", replicas: str = "", compacted: str = "") -> None:
        """All brokers are registered and unfenced, with one topic of one partition; its first replica leads epoch 0,
        and all of them (every broker, or `replicas`) are in the ISR."""
        configs = COMPACTED if compacted else {}
        placed = [int(replica) for replica in replicas.split(",")] if replicas else None
        self.quorum = LogQuorum(
            int(brokers), min_insync_replicas=int(min), replicas=placed, configs=configs, feature_level=FEATURE_LEVEL
        )
        for number in range(int(brokers)):
            node = self.nodes[number] = Node(number)
            self.begin_life(node)
            assert node.manager is not None
            node.manager.load(clean_shutdown=True)
            node.manager.on_registered(self.quorum.incarnation(number))
        self.do_settle()
        self.do_status()

    # --- Time, disks, everything ---

    def do_tick(self, seconds: str) -> None:
        self.scheduler.advance(float(seconds))

    def do_disk(self, *numbers: str, part: str = "") -> None:
        """Disk work is executed and its results are delivered; `part=begin` does only the first, `part=end` only the
        second."""
        for node in self.chosen(numbers):
            worker = node.worker
            assert worker is not None
            if part:
                worker.begin() if part == "begin" else worker.end()
            else:
                for _ in range(LIMIT):
                    if not worker.begin() + worker.end():
                        break

    def do_run(self, *numbers: str) -> None:
        """Deliver messages between these brokers (or all) and run their disks, until nothing moves. Without metadata
        and proposals."""
        chosen = {node.number for node in self.chosen(numbers)}
        for _ in range(LIMIT):
            self.scheduler.run()
            moved = 0
            for node in self.chosen(numbers):
                assert node.worker is not None
                moved += node.worker.begin() + node.worker.end()
                for peer in sorted(chosen - {node.number}):
                    for link, _ in self.ends(f"{node.number}->{peer}"):
                        moved += link.deliver() is not None
            if not moved:
                return
        raise AssertionError("the brokers never come to rest")

    def do_settle(self) -> None:
        """Let everything happen: metadata, links, messages, disks, proposals, a little time."""
        for _ in range(50):
            self.dial_all()
            self.do_metadata()
            self.do_run()
            for name in list(self.proposals):
                self.do_quorum(name)
            for name in list(self.reports):
                self.do_report(name)
            self.scheduler.advance(0.3)
            if not (self.proposals or self.reports) and all(n.read == len(self.quorum.log) for n in self.chosen(())):
                break
        self.do_metadata()
        self.do_run()

    # --- Clients ---

    def do_produce(
        self,
        number: str,
        values: str,
        acks: str = "all",
        pid: str = "-1",
        epoch: str = "0",
        seq: str = "0",
        resent: str = "no",
    ) -> None:
        """Send one batch of the comma-separated values. Answers are printed by the command during which they arrive."""
        idempotent = pid != "-1"
        batch = encode(
            [value.encode() for value in values.split(",")],
            base_timestamp_ms=self.scheduler.clock.wall_ms(),
            producer_id=int(pid),
            producer_epoch=int(epoch) if idempotent else -1,
            base_sequence=int(seq) if idempotent else -1,
        )

        def done(answer: Produced | RaftlogError) -> None:
            if isinstance(answer, Produced):
                self.say(f"{number} answers {values}: offset {answer.base_offset}")
            else:
                self.say(f"{number} answers {values}: {answer.code} (applied: {answer.applied.value})")

        self.manager(number).produce(TP, batch, ACKS[acks], done, resent=resent == "yes")

    def do_fetch(self, number: str, offset: str = "0", wait: str = "0") -> None:
        def done(answers: list[FetchedPartition], parts: list[Part]) -> None:
            (answer,) = answers
            if answer.error:
                self.say(f"{number} fetch: {answer.error}")
                return
            values = [value for batch in split_batches(_joined(parts)) for value in RecordBatch(batch).values()]
            shown = " ".join((value or b"").decode() for value in values) or "nothing"
            self.say(f"{number} fetch: {shown} hw={answer.high_watermark} epoch={answer.leader_epoch}")

        asked = FetchPartition(TP.topic_id, TP.partition, int(offset), 1 << 20)
        self.manager(number).fetch([asked], done, min_bytes=1, max_bytes=1 << 20, max_wait_ms=int(float(wait) * 1000))

    # --- Output ---

    def do_status(self) -> None:
        if TP in self.quorum.image.partitions:
            self.say_record()
        for node in self.chosen(()):
            assert node.manager is not None
            lines = [line for line in node.manager.status() if not line.startswith(("to ", "from "))]
            self.say(f"{node.number}: " + " | ".join(lines or ["nothing"]))

    def do_log(self, *numbers: str) -> None:
        """Show every record with its epoch, and the end of the fsynced part."""
        for node in self.chosen(numbers):
            assert node.manager is not None
            driver = node.manager.driver(TP)
            assert driver is not None
            log = driver.log
            records = []
            if log.log_end_offset > log.log_start_offset:
                piece = log.read(log.log_start_offset, log.log_end_offset, 1 << 24)
                for batch in map(RecordBatch, split_batches(_joined(piece.parts))):
                    if batch.control is not None:
                        place = f"{batch.header.base_offset}@{batch.header.leader_epoch}"
                        records.append(f"{place}={describe_control(batch.control)}")
                    for offset, value in zip(batch.offsets(), batch.values(), strict=True):
                        records.append(f"{offset}@{batch.header.leader_epoch}={(value or b'').decode()}")
            at = sum(1 for r in records if int(r.partition("@")[0]) < log.stable_end_offset)
            self.say(f"{node.number}: " + " ".join([*records[:at], "|", *records[at:]]))


def _joined(parts: Sequence[Part]) -> bytes:
    return b"".join(bytes_of(part) for part in parts)
