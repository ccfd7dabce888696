"""Mutation testing judges the suite, so its own mistakes would look like good tests: its trees, runs and counts."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("coverage", reason="a virtual environment from before mutation testing: pip install -e '.[dev]'")

from tests.mutants import judging, rows
from tests.mutants.judging import Judge
from tests.mutants.trees import Run, Tree

# --- Trees -----------------------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    names = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *names, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A tree with one module, `answer.py`, that returns 1; the checkout has advanced to 3."""
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "-q")
    (repository / "answer.py").write_text("ANSWER = 1\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "one")
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "answer.py").write_text("ANSWER = 3\n")
    return Tree(repository, commit, tmp_path / "copy")


ASK = ["-c", "import answer; print(answer.ANSWER)"]


def test_a_mutated_file_is_never_read_from_old_bytecode(tree: Tree) -> None:
    """All of these texts have the same length, and are written within one second."""
    for number in range(1, 5):
        with tree.holding("answer.py", f"ANSWER = {number + 4}\n"):
            assert tree.python(ASK, 60).output == f"{number + 4}\n"
        assert tree.python(ASK, 60).output == "1\n", "as the commit has it, not as the checkout"


def test_an_endless_run_is_ended_with_all_its_processes(tree: Tree, tmp_path: Path) -> None:
    """Its child holds one end of a pipe for as long as it lives."""
    alive = tmp_path / "alive"
    os.mkfifo(alive)
    child = f"import time; held = open({str(alive)!r}, 'w'); print('begun', file=held, flush=True); time.sleep(600)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    with open(os.open(alive, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as told:
        run = tree.python(["-c", program], 3.0)
        assert run.status is None and 3.0 <= run.seconds < 60
        for expected in (b"begun\n", b""):
            assert select.select([told], [], [], 30)[0], "nothing more is said, and the pipe is held"
            assert told.read(100) == expected


def test_a_tree_that_is_stopped_from_another_thread_ends_at_once_and_runs_nothing_more(tree: Tree) -> None:
    stopping = threading.Timer(1.0, tree.stop)
    stopping.start()
    began = time.monotonic()
    tree.python(["-c", "import time; time.sleep(600)"], 600)
    assert tree.stopped and tree.python(["-c", "import time; time.sleep(600)"], 600).status is None
    assert time.monotonic() - began < 60
    stopping.join()


def test_a_run_that_allocates_all_memory_gets_an_error(tree: Tree) -> None:
    assert "MemoryError" in tree.python(["-c", "bytearray(1 << 40)"], 60).output


def test_an_endless_test_fails_and_completed_ones_are_counted(tree: Tree) -> None:
    tests = tree.folder / "test_it.py"
    tests.write_text("def test_a(): ...\n\ndef test_b():\n    while True: ...\n\ndef test_c(): ...\n")
    run = tree.pytest(["test_it.py"], 60, stop=False, test_s=2.0)
    assert (run.status, run.failed, run.ran) == (1, ["test_it.py::test_b"], 3)
    assert tree.pytest(["test_it.py::test_c"], 60, test_s=30.0).status == 0
    run = tree.pytest(["test_it.py"], 6.0)
    assert (run.status, run.ran) == (None, 1), "what a stopped run had done is known"


# --- Judging ---------------------------------------------------------------------------------------------------------


class FakeTree:
    """Tests whose results a test of the judge decides: {mutated: {test: seconds or None if it fails}}."""

    folder = Path("/nowhere")

    def __init__(self) -> None:
        self.fails_mutated: set[str] = set()
        self.fails_anyway: set[str] = set()
        self.endless: set[str] = set()
        self.bad_worlds: set[str] = set()
        self.asked: list[tuple[bool, tuple[str, ...]]] = []
        self._mutated = False

    @contextmanager
    def holding(self, file: str, text: str) -> Iterator[None]:
        assert (file, text) == ("a.py", "mutated")
        self._mutated = True
        yield
        self._mutated = False

    def pytest(self, tests: Sequence[str], limit_s: float, *, test_s: float) -> Run:
        self.asked.append((self._mutated, tuple(tests)))
        for number, test in enumerate(tests, start=1):
            if test in self.endless and self._mutated:
                return Run(None, limit_s, "", ran=number - 1)
            if test in self.fails_anyway or (test in self.fails_mutated and self._mutated):
                return Run(1, 1.0, "", [test], number)
        return Run(0, 1.0, "", [], len(tests))

    def python(self, arguments: Sequence[str], limit_s: float) -> Run:
        assert self._mutated
        kind = arguments[arguments.index("--kind") + 1]
        self.asked.append((True, (kind,)))
        return Run(int(kind in self.bad_worlds), 1.0, "seed=1 ok\nseed=2 ok\nS1 is broken\n")


class FakeCovering:
    def __init__(self) -> None:
        self.seconds = {"t::fast": 0.1, "t::slow": 15.0, "t::slower": 19.0}

    def tests(self, file: str, line: int) -> list[str]:
        return list(self.seconds) if line == 7 else []


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> FakeTree:
    monkeypatch.setattr(judging, "test_files", lambda tree: ["t", "u"])
    monkeypatch.setattr(judging, "worlds_of", lambda file: judging.WORLDS)
    return FakeTree()


def judged(world: FakeTree, line: int = 7) -> judging.Judgement:
    return Judge(world, FakeCovering()).judge("a.py", line, "mutated")  # type: ignore[arg-type]


def test_tests_that_reach_the_line_run_first_and_the_others_later(world: FakeTree) -> None:
    world.fails_mutated = {"t::slow"}
    found = judged(world)
    assert (found.outcome, found.stage, found.killed_by) == ("killed", "covering", "t::slow")
    assert world.asked == [(True, ("t::fast", "t::slow")), (False, ("t::slow",))], "and the one that failed, without it"
    assert found.ran == {"covering": 2}


def test_a_survivor_has_passed_the_whole_suite_and_all_worlds(world: FakeTree) -> None:
    found = judged(world)
    assert (found.outcome, found.stage, found.bounded) == ("survived", "seeds", [])
    assert world.asked == [
        (True, ("t::fast", "t::slow")),
        (True, ("t::slower", "t", "u")),
        (True, ("cluster",)),
        (True, ("transactions",)),
    ]
    assert found.ran == {"covering": 2, "suite": 3, "seeds": 4}


def test_a_line_that_no_test_reaches_goes_to_the_suite_at_once(world: FakeTree) -> None:
    world.fails_mutated = {"u"}
    found = judged(world, line=8)
    assert (found.outcome, found.stage, found.killed_by) == ("killed", "suite", "u")


def test_a_violation_in_a_world_kills_the_mutant(world: FakeTree) -> None:
    world.bad_worlds = {"transactions"}
    found = judged(world)
    assert (found.outcome, found.stage) == ("killed", "seeds")
    assert found.killed_by == "transactions: S1 is broken"


def test_only_worlds_that_run_the_file_are_used() -> None:
    assert judging.worlds_of("partitions/replica/leader.py") == ["cluster", "transactions"]
    assert judging.worlds_of("http_api/routes/produce.py") == judging.worlds_of("raftlog/http2/sending.py") == []


def test_a_test_that_fails_without_the_mutant_proves_nothing(world: FakeTree) -> None:
    world.fails_anyway = {"t::fast", "u"}
    found = judged(world)
    assert (found.outcome, found.unreliable) == ("survived", ["t::fast", "u"])
    world.fails_mutated = {"t::slow"}
    found = judged(world)
    assert (found.outcome, found.killed_by, found.unreliable) == ("killed", "t::slow", ["t::fast"])


def test_a_bounded_run_decides_only_if_no_test_was_completed(world: FakeTree) -> None:
    world.endless = {"t::fast"}
    assert (judged(world).outcome, judged(world).stage) == ("timeout", "covering")
    world.endless = {"t::slow", "u"}
    found = judged(world)
    assert (found.outcome, found.bounded) == ("survived", ["covering", "suite"])


def test_a_judgement_without_the_suite_records_it(world: FakeTree) -> None:
    found = Judge(world, FakeCovering(), 0).judge("a.py", 7, "mutated")  # type: ignore[arg-type]
    assert (found.outcome, found.bounded) == ("survived", ["suite"])
    assert [tests for _, tests in world.asked] == [("t::fast", "t::slow"), ("cluster",), ("transactions",)]
    world.asked.clear()
    found = Judge(world, FakeCovering(), 0, 0).judge("a.py", 7, "mutated")  # type: ignore[arg-type]
    assert found.bounded == ["suite", "seeds"] and len(world.asked) == 1


def test_an_id_that_no_command_line_accepts_stands_for_all_cases() -> None:
    assert judging.printable("t.py::test_a[one-2]") == "t.py::test_a[one-2]"
    assert judging.printable("t.py::test_a[one\n2]") == "t.py::test_a"


# --- Rows ------------------------------------------------------------------------------------------------------------


def row(mutant: str, outcome: str, root: Path, file: str = "p/a.py", **more: Any) -> dict[str, Any]:
    path = root / file
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file)
    return {"mutant": mutant, "outcome": outcome, "file": file, "blob": rows.blob_of(path.read_bytes()), **more}


def test_the_score_is_of_the_last_rows_of_unchanged_files(tmp_path: Path) -> None:
    told = [
        row("1", "survived", tmp_path),
        row("2", "survived", tmp_path),
        row("3", "timeout", tmp_path),
        row("4", "invalid", tmp_path),
        row("5", "survived", tmp_path),
        row("6", "killed", tmp_path, "m/b.py"),
        row("7", "killed", tmp_path, "m/c.py"),
        row("1", "killed", tmp_path),
    ]
    (tmp_path / "m/c.py").write_text("changed")
    found = rows.score(told, tmp_path, {"5": "the loop ends there anyway"})
    assert (found.killed, [one["mutant"] for one in found.survived]) == (3, ["2"])
    assert (found.equivalent, found.outdated, found.ratio) == (1, 1, 0.75)
    assert found.by_folder == {"m": (1, 1), "p": (2, 3)}
    (tmp_path / "m/b.py").unlink()
    assert rows.score(told, tmp_path, {}).outdated == 2


def test_a_blob_has_gits_hash(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"content\n")
    assert rows.blob_of(b"content\n") == git(tmp_path, "hash-object", "x")


def test_an_incomplete_row_is_skipped_and_an_equivalent_needs_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"mutant": "1", "why": "r"}) + "\n" + '{"mutant": "2", "wh')
    assert rows.equivalents(file) == {"1": "r"}
    file.write_text(json.dumps({"mutant": "1", "why": " "}) + "\n")
    with pytest.raises(ValueError, match="1 has no reason"):
        rows.equivalents(file)


def test_the_kept_rows_can_be_summarized() -> None:
    """The results here, and each equivalent is a mutant that was judged."""
    kept = rows.read(rows.RESULTS)
    found = rows.score(kept, Path(__file__).parents[3], rows.equivalents())
    assert found.killed + len(found.survived) + found.equivalent + found.outdated <= len(kept)
    assert set(rows.equivalents()) <= {one["mutant"] for one in kept}


def test_the_command_shows_its_usage() -> None:
    pytest.importorskip("mutmut", reason="a virtual environment from before mutation testing: pip install -e '.[dev]'")
    command = [sys.executable, "-P", "-m", "tests.mutants", "score"]
    root = Path(__file__).parents[3]
    told = subprocess.run(command, cwd=root, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0 and "killed (" in told.stdout, told.stderr
