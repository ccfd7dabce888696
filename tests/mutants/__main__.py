"""`python -P -m tests.mutants`: judge a sample of mutants, and summarize the results.

    run --sample 150 --seed 1      judge the mutants of the sample without a valid row; continues after a stop
    run --again                    judge the survivors again
    score                          summary of the valid rows, with the survivors
    show MUTANT                    its diff

Exit code 0: done; 1: of `run`, a mutant survived; 2: usage.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import msgspec

from jepsen_like.scoreboard.json_lines import append_line

from . import rows
from .covering import Covering, Named
from .judging import INVALID, SEEDS, SUITE_S, SURVIVED, Judge, as_row
from .mutations import Mutant, SourceFile, in_order
from .trees import Tree

OPERATORS = Path(__file__).with_name("mutations.py")
ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "partitions", "metadata", "raftlog/client", "raftlog/http2", "raftlog/broker", "http_api", "spark_source",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -P -m tests.mutants", description=__doc__)
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("run", help="judge a sample")
    run.add_argument("--sample", type=int, default=150, help="how many mutants, of all folders together")
    run.add_argument("--seed", type=int, default=1, help="of the sample")
    run.add_argument("--jobs", type=int, default=1, help="mutants at a time: one a core at most")
    run.add_argument("--commit", default="HEAD", help="whose code is judged, by its own tests")
    run.add_argument("--budget", type=float, default=0.0, help="begin none after so many seconds; 0: all of them")
    run.add_argument("--suite-seconds", type=float, default=SUITE_S, help="the whole suite a survivor; 0: leave it out")
    run.add_argument("--folder", action="append", choices=FOLDERS, help="only of this one; may be repeated")
    run.add_argument("--again", action="store_true", help="judge again what survived")
    run.add_argument("--seeds", type=int, default=SEEDS, help="of each kind of simulated world, a survivor; 0: none")
    run.add_argument("--mutant", nargs="+", help="these, whether they were judged or not")
    run.add_argument("--tests", nargs="+", help="ask these first, instead of those that reach the line")
    run.add_argument("--results", type=Path, default=rows.RESULTS)
    run.add_argument("--cache", type=Path, default=ROOT / "build" / "mutants")
    run.set_defaults(call=_run)
    score = commands.add_parser("score", help="what the results add up to")
    score.add_argument("--results", type=Path, default=rows.RESULTS)
    score.set_defaults(call=_score)
    show = commands.add_parser("show", help="a mutant's diff")
    show.add_argument("mutant")
    show.set_defaults(call=_show)
    parsed = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # and clean up, as for Ctrl-C
    return int(parsed.call(parsed))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _files(root: Path, folders: Sequence[str]) -> list[str]:
    """Files in these folders and below."""
    return sorted({str(path.relative_to(root)) for folder in folders for path in (root / folder).rglob("*.py")})


def _source(root: Path, file: str) -> SourceFile:
    return SourceFile(file, (root / file).read_text())


@contextmanager
def _trees(commit: str, count: int) -> Iterator[list[Tree]]:
    folder = Path(tempfile.mkdtemp(prefix="raftlog-mutants-"))
    try:
        yield [Tree(ROOT, commit, folder / str(number)) for number in range(count)]
    finally:
        shutil.rmtree(folder)


def _run(parsed: argparse.Namespace) -> int:
    named = ["git", "-C", str(ROOT), "rev-parse", "--short=12", f"{parsed.commit}^{{commit}}"]
    commit = subprocess.run(named, check=True, capture_output=True, text=True, timeout=60).stdout.strip()
    ends = time.monotonic() + parsed.budget if parsed.budget else float("inf")
    with _trees(commit, max(1, parsed.jobs)) as trees:
        covering = Named(parsed.tests) if parsed.tests else _made(Covering(trees[0], parsed.cache / commit))
        todo = _todo(parsed, trees[0].folder)
        free: SimpleQueue[Tree] = SimpleQueue()
        for tree in trees:
            free.put(tree)
        writing = threading.Lock()
        survived = 0

        def one(mutant: Mutant) -> None:
            nonlocal survived
            if time.monotonic() >= ends:
                return
            tree = free.get()
            try:
                row = _judged(
                    mutant,
                    _source(tree.folder, mutant.file),
                    Judge(tree, covering, parsed.suite_seconds, parsed.seeds),
                    commit,
                )
            finally:
                free.put(tree)
            if tree.stopped:
                return  # a process that this command killed proves nothing
            with writing:
                append_line(parsed.results, row)
                survived += row["outcome"] == SURVIVED
                where = f"{mutant.file}:{mutant.line} {mutant.operator}"
                _say(f"{row['outcome']:9} {row['seconds']:6} s {mutant.identity} {where} {row['killed_by']}")

        with ThreadPoolExecutor(len(trees)) as pool:
            try:
                for _ in pool.map(one, todo):
                    pass
            except BaseException:
                for tree in trees:
                    tree.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return 1 if survived else 0


def _made(covering: Covering) -> Covering:
    for line in covering.make():
        _say(line)
    return covering


def _mutants(root: Path, file: str, cache: Path) -> list[Mutant]:
    """The mutants of one file, cached by its content: finding those of all files takes a minute."""
    source = (root / file).read_bytes()
    name = rows.blob_of(OPERATORS.read_bytes() + file.encode() + source)
    kept = cache / "files" / f"{name}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        beside = kept.with_suffix(".new")
        beside.write_bytes(msgspec.json.encode(SourceFile(file, source.decode()).mutants))
        beside.rename(kept)
    return msgspec.json.decode(kept.read_bytes(), type=list[Mutant])


def _is_as_here(root: Path, file: str) -> bool:
    """The results for a file that has changed since would not count."""
    here = ROOT / file
    return here.exists() and here.read_bytes() == (root / file).read_bytes()


def _todo(parsed: argparse.Namespace, root: Path) -> list[Mutant]:
    counted, _ = rows.counting(rows.read(parsed.results), root)
    if parsed.again:
        equal = rows.equivalents()
        wanted = {name: row for name, row in counted.items() if row["outcome"] == SURVIVED and name not in equal}
        files = sorted({str(row["file"]) for row in wanted.values()})
        return [one for file in files for one in _mutants(root, file, parsed.cache) if one.identity in wanted]
    files = _files(root, parsed.folder or FOLDERS)
    same = [file for file in files if _is_as_here(root, file)]
    if len(same) < len(files):
        _say(f"left out: {len(files) - len(same)} files that are not here as they are in {parsed.commit}")
    everything = [mutant for file in same for mutant in _mutants(root, file, parsed.cache)]
    if parsed.mutant:
        return [mutant for mutant in everything if mutant.identity in parsed.mutant]
    sample = in_order(everything, parsed.seed)[: parsed.sample]
    todo = [mutant for mutant in sample if mutant.identity not in counted]
    _say(f"{len(everything)} mutants, a sample of {len(sample)}, of which {len(todo)} are to be judged")
    return todo


def _judged(mutant: Mutant, source: SourceFile, judge: Judge, commit: str) -> dict[str, object]:
    began = time.monotonic()
    row: dict[str, object] = {
        "mutant": mutant.identity,
        "commit": commit,
        "blob": rows.blob_of(source.text.encode()),
        "file": mutant.file,
        "scope": mutant.scope,
        "line": mutant.line,
        "operator": mutant.operator,
        "occurrence": mutant.occurrence,
        "diff": source.diff(mutant.identity),
    }
    text = source.made(mutant.identity)
    if text is None:
        return {**row, "outcome": INVALID, "killed_by": "no Python", "seconds": 0.0}
    judged = as_row(judge.judge(mutant.file, mutant.line, text))
    return {**row, **judged, "seconds": round(time.monotonic() - began, 1)}


def _score(parsed: argparse.Namespace) -> int:
    found = rows.score(rows.read(parsed.results), ROOT, rows.equivalents())
    for row in found.survived:
        _say(f"survived {row['mutant']} {row['file']}:{row['line']} in {row['scope']}, {row['operator']}")
        _say(f"{row['diff']}\n")
    for folder, (killed, judged) in found.by_folder.items():
        _say(f"{folder:20} {killed:4} of {judged:4}")
    judged = found.killed + len(found.survived)
    _say(
        f"{found.killed} of {judged} killed ({found.ratio:.1%}), {found.equivalent} equivalent, "
        f"{found.outdated} of files that have changed since"
    )
    return 0


def _show(parsed: argparse.Namespace) -> int:
    for source in (_source(ROOT, file) for file in _files(ROOT, FOLDERS)):
        for mutant in source.mutants:
            if mutant.identity == parsed.mutant:
                _say(f"{mutant.file}:{mutant.line} in {mutant.scope}, {mutant.operator}")
                _say(source.diff(mutant.identity))
                return 0
    sys.stderr.write(f"{parsed.mutant} is no mutant of this tree\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
