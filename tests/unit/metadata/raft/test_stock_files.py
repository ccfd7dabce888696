"""The files and the port of stock pysyncobj 0.3.17, each with the test that shows its hole closed here.

See also `test_stock.py`. It leaves files open, so those warnings are ignored.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pysyncobj.journal
import pytest
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.journal import FileJournal, ResizableFile

from jepsen_like.clusters.power_loss import Survivors, Volumes
from tests.support.clusters.attack import pickled
from tests.support.clusters.held_port import HOST, HeldPort
from tests.support.clusters.power_rounds import skip_unless_power_can_be_cut
from tests.support.quorum.stock_cluster import StockCluster

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

PATIENCE_S = 30.0

_VOTER = """
import sys
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

class Said(Transport):
    def send(self, node, message):
        print(message["type"], message["term"], "to", node.id, flush=True)

said = Said(None, None, [])
configuration = SyncObjConf(autoTick=False, journalFile=sys.argv[1])
voter = SyncObj(Node("a"), [Node("b"), Node("c")], configuration, transport=said)
asks = {"type": "request_vote", "term": 7, "last_log_index": 1, "last_log_term": 0}
said._onMessageReceived(Node(sys.argv[2]), asks)
print("asked", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def asked_for_its_vote(journal: str, candidate: str) -> Iterator[list[str]]:
    """A process with a stock voter in it, and its answer. It runs while the block runs, and is then killed."""
    command = [sys.executable, "-P", "-c", _VOTER, journal, candidate]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as voter:
        assert voter.stdout is not None
        said = []
        while (line := voter.stdout.readline().strip()) != "asked":
            assert line, "the voter died"
            said.append(line)
        try:
            yield said
        finally:
            voter.kill()


def test_stock_votes_twice_after_a_power_loss() -> None:
    """Ours: `test_no_second_vote_after_a_restart`, `test_a_power_failure_of_all_nodes_loses_nothing_acknowledged`.

    Term and vote are written to a file before the answer, and never synced.
    """
    skip_unless_power_can_be_cut()
    with Volumes() as volumes:
        volume = volumes.add("disk", 16 * 1024 * 1024)
        journal = f"{volume.data}/journal"
        with asked_for_its_vote(journal, "b") as said:
            assert said == ["response_vote 7 to b"]
        with asked_for_its_vote(journal, "c") as said:
            assert said == [], "a restart alone does not make it forget"
            volume.cut(Survivors.NOTHING, random.Random(1))
        assert volume.restore().files
        with asked_for_its_vote(journal, "c") as said:
            assert said == ["response_vote 7 to c"]


class Killed(BaseException):
    """The program is killed at this point."""


def test_stock_loses_what_must_survive_when_killed_while_it_rewrites_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ours: `test_no_crash_in_a_compaction_loses_anything`."""
    path = str(tmp_path / "journal")
    journal = FileJournal(path)
    for index in range(1, 1001):
        journal.add(b"x" * 20, index, 1)
    written = 0
    write = ResizableFile.write

    def write_and_die(self: ResizableFile, offset: int, values: bytes) -> None:
        nonlocal written
        written += 1
        if written > 100:
            raise Killed
        write(self, offset, values)

    monkeypatch.setattr(ResizableFile, "write", write_and_die)
    with pytest.raises(Killed):
        journal.deleteEntriesTo(500)
    monkeypatch.undo()
    journal._destroy()
    again = FileJournal(path)
    assert len(again) < 60, "500 entries must survive"
    again._destroy()


def test_stock_syncs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: `test_one_group_is_one_fsync_and_nothing_staged_is_none`,
    `test_a_single_voter_reports_nothing_before_it_is_synced`."""
    synced: list[object] = []
    for name in ("fsync", "fdatasync", "sync"):
        monkeypatch.setattr(f"os.{name}", synced.append)
    monkeypatch.setattr(ResizableFile, "flush", synced.append)
    cluster = StockCluster(monkeypatch, folder=tmp_path)
    cluster.elect("a")
    acknowledged = cluster.add("a", list(range(300)))
    cluster.run()
    cluster.compact("a")
    assert len(acknowledged) == 300 and synced == []
    cluster.close()


def test_stock_takes_damaged_bits_for_entries(tmp_path: Path) -> None:
    """Ours: `test_a_flipped_bit_in_the_vouched_part_is_never_accepted`."""
    path = tmp_path / "journal"
    journal = FileJournal(str(path))
    journal.add(b"what was agreed", 1, 1)
    journal._destroy()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"what was agreed", b"what was agreeD"))
    again = FileJournal(str(path))
    assert again[0] == (b"what was agreeD", 1, 1)
    again._destroy()


def test_stock_forgets_its_vote_when_its_file_is_damaged(tmp_path: Path) -> None:
    """Ours: `test_a_damaged_first_record_is_never_cut`, `test_a_missing_journal_is_never_a_first_start`."""
    journal = FileJournal(str(tmp_path / "journal"))
    journal.setCurrentTerm(7, "b")
    journal._destroy()
    (tmp_path / "journal.meta").write_bytes(b"\x80damaged")
    again = FileJournal(str(tmp_path / "journal"))
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (0, None)
    again._destroy()


def test_stock_continues_with_nothing_when_its_dump_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours: `test_a_damaged_snapshot_on_disk_is_fatal`."""
    cluster = StockCluster(monkeypatch, folder=tmp_path)
    cluster.elect("a")
    acknowledged = cluster.add("a", list(range(10)))
    cluster.run()
    for name in "abc":
        cluster.compact(name)
        dump = tmp_path / name
        dump.write_bytes(dump.read_bytes()[: dump.stat().st_size // 2])
    cluster.start()
    cluster.tick()
    cluster.elect("a")
    cluster.run()
    assert len(acknowledged) == 10
    assert [node.values for node in cluster.nodes.values()] == [[], [], []]
    cluster.close()


def test_stock_runs_what_a_stranger_sends_to_its_port(tmp_path: Path, held: HeldPort) -> None:
    """Ours: `test_pickles_sent_to_every_port_are_only_bytes`.

    Without a password a message is unpickled before anybody asks whose it is.
    """
    configuration = SyncObjConf(autoTick=False, bindAddress=str(held))
    node = SyncObj(str(held), ["127.0.0.1:1"], configuration)
    packed = zlib.compress(pickled(str(tmp_path / "owned")), 3)
    try:
        node.doTick(0.01)
        with socket.create_connection((HOST, held.number)) as stranger:
            stranger.sendall(struct.pack("i", len(packed)) + packed)
            deadline = time.monotonic() + PATIENCE_S
            while not (tmp_path / "owned").exists():
                assert time.monotonic() < deadline, "it was not run"
                node.doTick(0.01)
    finally:
        node.destroy()


def test_everything_that_stock_writes_is_pickled(tmp_path: Path) -> None:
    """Ours: `test_no_file_of_the_quorum_holds_a_pickle`."""
    journal = FileJournal(str(tmp_path / "journal"))
    journal.setCurrentTerm(7, "b")
    journal._destroy()
    loaded = pickle.loads((tmp_path / "journal.meta").read_bytes())
    assert loaded == {"currentTerm": 7, "votedForNodeId": "b"}
    assert pysyncobj.journal.MetaStorer(str(tmp_path / "journal.meta")).getMeta() == loaded
