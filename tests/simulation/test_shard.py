"""A range of seeds over many sittings, and shrunk schedules."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import pytest

from jepsen_like.provenance.same_code import STILL_HOLDS
from jepsen_like.simulator.__main__ import main
from jepsen_like.simulator.shards import shard as shards
from jepsen_like.simulator.shards import shard_code
from jepsen_like.simulator.shards.seeds import RUNNERS
from jepsen_like.simulator.shards.shard import Shard, append, chunks, covered, run_shard, summarize
from jepsen_like.simulator.shards.shard_code import commit_of_this_tree, same_code
from jepsen_like.simulator.shards.shrink import minimize

HARMLESS = ("<module>", "__getattr__", "__set_name__")


def test_a_shard_continues_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "CHUNK_SEEDS", 2)
    path = str(tmp_path / "results.jsonl")
    shard = Shard("quorum", 1, 5, 2.0, "here")
    ran: list[int] = []
    run_shard(shard, path, budget=1e-9, report=lambda verdict: ran.append(verdict.seed))
    assert ran == [1]
    # The machine stops in the middle of a line.
    with open(path, "a") as file:
        file.write('{"commit": "here", "kind": "quo')
    assert run_shard(shard, path, report=lambda verdict: ran.append(verdict.seed)) == 0
    assert ran == [1, 2, 3, 4, 5]
    assert covered(path, shard) == [(1, 1), (2, 3), (4, 5)]
    run_shard(shard, path, report=lambda verdict: ran.append(verdict.seed))
    assert len(ran) == 5
    lines = [json.loads(line) for line in Path(path).read_text().split("\n") if line.endswith("}")]
    assert [(line["from"], line["to"], line["violations"]) for line in lines] == [(1, 1, []), (2, 3, []), (4, 5, [])]
    assert all(line["virtual_seconds"] > 2.0 and line["seconds"] > 0 for line in lines)


def test_results_of_other_code_do_not_count(tmp_path: Path) -> None:
    path = str(tmp_path / "results.jsonl")
    shard = Shard("quorum", 1, 1, 2.0, "here")
    run_shard(shard, path)
    assert covered(path, shard) == [(1, 1)]
    assert covered(path, Shard("quorum", 1, 1, 2.0, "there")) == []
    assert covered(path, Shard("quorum", 1, 1, 3.0, "here")) == []
    assert covered(path, Shard("cluster", 1, 1, 2.0, "here")) == []
    # Unless it is the same code under another name.
    assert covered(path, Shard("quorum", 1, 1, 2.0, "there"), lambda commit, clean: commit == "here") == [(1, 1)]
    ran: list[int] = []
    run_shard(
        Shard("quorum", 1, 2, 2.0, "there"),
        path,
        report=lambda verdict: ran.append(verdict.seed),
        same_code=lambda commit, clean: commit == "here",
    )
    assert ran == [2]


def test_valid_results_are_added_up(tmp_path: Path) -> None:
    first, second = str(tmp_path / "first.jsonl"), str(tmp_path / "second.jsonl")
    found = {"seed": 12, "trace": "ab", "violation": "S7.1: two leaders\n..."}
    here, there = Shard("quorum", 1, 100, 60.0, "here"), Shard("quorum", 1, 100, 60.0, "there")
    append(first, here, (1, 10), virtual=600.0, seconds=10.0, violations=[])
    append(first, there, (11, 50), virtual=2400.0, seconds=40.0, violations=[found])
    append(second, here, (6, 15), virtual=600.0, seconds=20.0, violations=[found])
    append(second, Shard("cluster", 1, 9, 60.0, "here"), (1, 1), virtual=90.0, seconds=3.0, violations=[])
    cluster, quorum = summarize([first, second], lambda kind, commit, clean: commit == "here")
    assert (cluster.kind, cluster.seeds, cluster.violations) == ("cluster", {1}, {})
    # Seeds 6 to 10 were run twice, and count once.
    assert (quorum.seeds, quorum.virtual_seconds, quorum.seconds) == (set(range(1, 16)), 900.0, 20.0)
    assert (quorum.violations, quorum.outdated) == ({12: found["violation"]}, 40)
    assert "15 seeds of 60 s count" in str(quorum) and "45 a second), 1 violations; 40 seeds" in str(quorum)


def test_code_is_the_same_if_only_files_differ_that_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def write(path: str, content: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)

    monkeypatch.setattr(shard_code, "TOP", tmp_path)
    monkeypatch.setattr(shard_code, "ROOTS", {"quorum": "jepsen_like/quorum_run.py", "cluster": "jepsen_like/run.py"})
    shard_code.files.cache_clear()
    request.addfinalizer(shard_code.files.cache_clear)
    git("init", "-q")
    write("docs/quorum.md", "first\n")
    write("jepsen_like/quorum_run.py", "from metadata.journal.journal import Journal\nfrom . import heap\n")
    write("jepsen_like/run.py", "import struct, partitions.log.log\nfrom .quorum_run import Verdict\n")
    write("jepsen_like/heap.py", "def later():\n    from raftlog.http2.stream import Stream\n")
    write("metadata/journal/journal.py", "import zlib\n")
    write("metadata/__init__.py", "from .view import View\n")
    write("partitions/log/log.py", "# first\n")
    write("raftlog/http2/stream.py", "# first\n")
    quorum = ("jepsen_like/heap.py", "jepsen_like/quorum_run.py", "metadata/journal/journal.py")
    assert shard_code.files("quorum") == quorum
    assert shard_code.files("cluster") == tuple(sorted((*quorum, "jepsen_like/run.py", "partitions/log/log.py")))
    git("add", ".")
    git("commit", "-qm", "first")
    first = commit_of_this_tree("quorum")
    assert first == commit_of_this_tree("cluster") and not first.endswith("+")
    for path in ("docs/quorum.md", "partitions/log/log.py", "raftlog/http2/stream.py"):
        write(path, "# second\n")
    assert commit_of_this_tree("quorum") == first
    assert commit_of_this_tree("cluster") == f"{first}+"
    git("commit", "-qam", "second")
    assert commit_of_this_tree("quorum") != first
    assert same_code("quorum")(first, False) and not same_code("cluster")(first, True)
    write("metadata/journal/journal.py", "# third\n")
    assert not same_code("quorum")(first, True)
    assert not any(same_code("quorum")(commit, True) for commit in ("unknown", f"{first}+", "0123456789ab", "--help"))
    # A later commit says why correct worlds are still valid; of found violations, and of changes on top, nothing is
    # assumed.
    git("commit", "-qam", "third")
    why = json.dumps({"commit": commit_of_this_tree("quorum"), "kinds": ["quorum"], "why": "takes more than before"})
    assert not same_code("quorum")(first, True)
    write(STILL_HOLDS, f"{why}\n")
    assert same_code("quorum")(first, True) and not same_code("quorum")(first, False)
    assert not same_code("cluster")(first, True)
    write("metadata/journal/journal.py", "# fourth\n")
    assert not same_code("quorum")(first, True)
    git("commit", "-qam", "fourth")
    assert not same_code("quorum")(first, True)
    # A series of commits that moved files names its last one, and the commits whose results were valid when it began.
    moved = {"until": commit_of_this_tree("quorum"), "results": [first], "kinds": ["quorum"], "why": "the same traces"}
    write(STILL_HOLDS, json.dumps(moved) + "\n")
    assert same_code("quorum")(first, True) and not same_code("quorum")(first, False)
    assert not same_code("cluster")(first, True) and not same_code("quorum")("0123456789ab", True)
    write("metadata/journal/journal.py", "# fifth\n")
    git("commit", "-qam", "fifth")
    assert not same_code("quorum")(first, True)
    write(STILL_HOLDS, f"{why.replace('takes more than before', ' ')}\n")
    with pytest.raises(ValueError, match="the reason why"):
        same_code("quorum")(first, True)


@pytest.mark.parametrize("kind", ["quorum", "groups", "consumers", "security", "cluster", "transactions", "clients"])
def test_worlds_call_nothing_outside_the_hashed_code(kind: str) -> None:
    """Otherwise results would depend on code that is not compared."""
    counted = set(shard_code.files(kind))
    called: set[str] = set()

    def hook(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name not in HARMLESS:
            called.add(frame.f_code.co_filename)

    RUNNERS[kind](1, 0.1)  # imports what it needs
    sys.setprofile(hook)
    try:
        verdict = RUNNERS[kind](5, 3.0)
    finally:
        sys.setprofile(None)
    assert verdict.passed
    top = str(shard_code.TOP) + os.sep
    ours = {path.removeprefix(top) for path in called if path.startswith(top) and ".venv" not in path}
    assert ours - counted <= {"jepsen_like/simulator/shards/seeds.py", "tests/simulation/test_shard.py"}
    assert any(path.startswith("metadata/quorum/") for path in ours)


def test_an_unrelated_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    path.write_text('{"my": "notes"}\n')
    with pytest.raises(ValueError, match="line 1: not a shard's result"):
        run_shard(Shard("quorum", 1, 1, 2.0, "here"), str(path))
    assert path.read_text() == '{"my": "notes"}\n'


@pytest.mark.parametrize(
    ("done", "left"),
    [
        ([], [(1, 50), (51, 100), (101, 120)]),
        ([(1, 120)], []),
        ([(1, 30), (20, 60)], [(61, 110), (111, 120)]),
        ([(40, 50)], [(1, 39), (51, 100), (101, 120)]),
    ],
)
def test_the_remaining_seeds_of_a_shard(done: list[tuple[int, int]], left: list[tuple[int, int]]) -> None:
    assert chunks(Shard("quorum", 1, 120, 60.0, "here"), done) == left


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = str(tmp_path / "results.jsonl")
    shard = ["shard", "--kind", "quorum", "--from", "1", "--to", "2", "--seconds", "2", "--results", results]
    assert main(shard) == 0
    assert json.loads(Path(results).read_text())["to"] == 2
    assert "0 violations" in capsys.readouterr().out
    assert main(["shards", "--results", results]) == 0
    assert "0 violations" in capsys.readouterr().out
    assert main(["shards", "--results", str(tmp_path / "missing.jsonl")]) == 2
    assert main(["--kind", "quorum", "--seed", "3", "--seconds", "2"]) == 0
    assert "1 seeds passed" in capsys.readouterr().out
    assert main(["shrink", "--seed", "3", "--seconds", "2", "--out", str(tmp_path / "small.json")]) == 2
    assert "does not fail" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "missing.json")]) == 2


@pytest.mark.parametrize("culprits", [{3}, {0, 19}, {5, 6, 7}, set(), {2, 9, 16}])
def test_unneeded_parts_are_deleted(culprits: set[int]) -> None:
    tries = 0

    def fails(items: Sequence[int]) -> bool:
        nonlocal tries
        tries += 1
        return culprits <= set(items)

    assert minimize(range(20), fails) == sorted(culprits)
    assert tries < 150
