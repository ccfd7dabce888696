"""`python -m jepsen_like.simulator`: run seeds of simulated worlds, print a line for each, stop at the first violation.

    --kind KIND --seed N --seeds COUNT    seeds one after the other; quorum, groups, consumers, security, cluster,
                                          transactions or clients
    shard --kind KIND --from A --to B --results FILE    a long range of seeds; resumes where the file ends
    shards --results FILE...        the total of such files, as far as the present code made it
    traces --kind KIND --from A --to B --out FILE [--against FILE]      trace hashes, kept and compared
    shrink --kind KIND --seed N --out FILE      the smallest schedule with which a seed still fails
    replay FILE...                  saved schedules

The same seed and the same code give the same trace hash. Exit code 0: every property held; 1: one did not; 2: usage.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from jepsen_like.simulator.shards.schedules import draw, from_json, run, shrink
from jepsen_like.simulator.shards.seeds import RUNNERS, Verdict
from jepsen_like.simulator.shards.shard import Shard, run_shard, summarize
from jepsen_like.simulator.shards.shard_code import ROOTS, commit_of_this_tree, same_code
from jepsen_like.simulator.shards.shrink import Shrinker
from jepsen_like.simulator.shards.traces import compare, read_traces, run_traces

COMMANDS = ("seeds", "shard", "shards", "traces", "shrink", "replay")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0: every seed passed; 1: one failed, and the end of its trace was printed."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or (given[0] not in COMMANDS and given[0] not in ("-h", "--help")):
        given.insert(0, "seeds")
    parsed = _parser().parse_args(given)
    try:
        return int(parsed.run(parsed))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jepsen_like.simulator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="")
    seeds = commands.add_parser("seeds", help="run seeds (the default command)")
    _common(seeds, kind="cluster")
    seeds.add_argument("--seed", type=int, default=1, help="the first seed")
    seeds.add_argument("--seeds", type=int, default=1, help="number of seeds")
    seeds.add_argument("--budget", type=float, default=0.0, help="stop after this many real seconds; 0: never")
    seeds.add_argument("--results", default="", help="append a JSON line per seed to this file")
    seeds.add_argument("--no-faults", action="store_true")
    seeds.set_defaults(run=_seeds)
    shard = commands.add_parser("shard", help="run a range of seeds, resuming where its results file ends")
    _common(shard, kind="quorum")
    shard.add_argument("--from", dest="first", type=int, required=True, help="the first seed")
    shard.add_argument("--to", dest="last", type=int, required=True, help="the last seed")
    shard.add_argument("--results", required=True, help="append a JSON line per chunk of seeds to this file")
    shard.add_argument("--budget", type=float, default=0.0, help="stop after this many real seconds; 0: never")
    shard.set_defaults(run=_shard)
    shards = commands.add_parser("shards", help="add up the results of shards that still count")
    shards.add_argument("--results", nargs="+", required=True, help="files that `shard` wrote")
    shards.set_defaults(run=_shards)
    traces = commands.add_parser("traces", help="keep the trace hashes of a range of seeds, and compare them")
    _common(traces, kind="cluster")
    traces.add_argument("--from", dest="first", type=int, required=True, help="the first seed")
    traces.add_argument("--to", dest="last", type=int, required=True, help="the last seed")
    traces.add_argument(
        "--out", required=True, help="append a JSON line per seed to this file; seeds that it has are not run"
    )
    traces.add_argument("--against", default="", help="file of the earlier code: exit code 1 if a hash differs")
    traces.set_defaults(run=_traces)
    shrinking = commands.add_parser("shrink", help="shrink a failing seed's schedule, and save it")
    shrinking.add_argument("--kind", choices=sorted(RUNNERS), default="quorum", help="default quorum")
    shrinking.add_argument("--seed", type=int, required=True)
    shrinking.add_argument("--seconds", type=float, default=60.0, help="virtual seconds of faults")
    shrinking.add_argument("--tries", type=int, default=400, help="maximum number of runs")
    shrinking.add_argument("--out", required=True, help="the file for the schedule")
    shrinking.set_defaults(run=_shrink)
    replay = commands.add_parser("replay", help="run saved schedules")
    replay.add_argument("files", nargs="+")
    replay.add_argument("--lines", type=int, default=200, help="trace lines to print for a violation")
    replay.set_defaults(run=_replay)
    return parser


def _common(parser: argparse.ArgumentParser, *, kind: str) -> None:
    parser.add_argument("--kind", choices=sorted(RUNNERS), default=kind, help=f"kind of world; default {kind}")
    parser.add_argument("--seconds", type=float, default=60.0, help="virtual seconds of faults per seed")
    parser.add_argument("--lines", type=int, default=200, help="trace lines to print for a violation")


def _say(line: object) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _failed(verdict: Verdict, lines: int) -> None:
    for line in verdict.lines[-lines:]:
        _say(f"  {line}")
    _say(f"seed {verdict.seed} failed: {verdict.violation}")


def _seeds(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    commit = commit_of_this_tree(arguments.kind) if arguments.results else ""
    passed, virtual = 0, 0.0
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        before = time.monotonic()
        verdict = RUNNERS[arguments.kind](seed, arguments.seconds, faulty=not arguments.no_faults)
        virtual += verdict.seconds
        _say(verdict)
        if arguments.results:
            keep(arguments.results, commit, arguments.kind, verdict, time.monotonic() - before)
        if not verdict.passed:
            _failed(verdict, arguments.lines)
            return 1
        passed += 1
        if arguments.budget and time.monotonic() - began > arguments.budget:
            break
    wall = time.monotonic() - began
    _say(f"{passed} seeds passed, {virtual:.0f} virtual seconds in {wall:.0f} s ({virtual / wall:.0f} per second)")
    return 0


def keep(path: str, commit: str, kind: str, verdict: Verdict, seconds: float) -> None:
    """Append one seed's result."""
    line = {
        "commit": commit,
        "kind": kind,
        "seed": verdict.seed,
        "passed": verdict.passed,
        "virtual_seconds": round(verdict.seconds, 1),
        "seconds": round(seconds, 1),
        "trace": verdict.trace,
    }
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _shard(arguments: argparse.Namespace) -> int:
    commit = commit_of_this_tree(arguments.kind)
    shard = Shard(arguments.kind, arguments.first, arguments.last, arguments.seconds, commit)

    def report(verdict: Verdict) -> None:
        if not verdict.passed:
            _failed(verdict, arguments.lines)

    same = same_code(arguments.kind)
    found = run_shard(shard, arguments.results, budget=arguments.budget, report=report, same_code=same)
    _say(f"{found} violations; {arguments.results} has what was run")
    return 1 if found else 0


def _shards(arguments: argparse.Namespace) -> int:
    same = {kind: same_code(kind) for kind in ROOTS}
    summaries = summarize(arguments.results, lambda kind, commit, clean: same[kind](commit, clean))
    for summary in summaries:
        _say(summary)
        for seed, violation in sorted(summary.violations.items()):
            _say(f"  seed {seed}: {violation.splitlines()[0]}")
    return 1 if any(summary.violations for summary in summaries) else 0


def _traces(arguments: argparse.Namespace) -> int:
    kind, first, last, seconds = arguments.kind, arguments.first, arguments.last, arguments.seconds
    before = read_traces(arguments.against) if arguments.against else None
    for seed, trace in run_traces(kind, first, last, seconds, arguments.out):
        known = None if before is None else before.get((kind, seed, seconds))
        _say(f"{kind} {seed}: {trace}{'' if known is None else ', the same' if known == trace else f', was {known}'}")
    if before is None:
        return 0
    wanted = {(kind, seed, seconds) for seed in range(first, last + 1)}
    found = compare(before, read_traces(arguments.out), wanted.__contains__)
    _say(found)
    return 0 if found.same else 1


def _shrink(arguments: argparse.Namespace) -> int:
    shrinker = Shrinker(lambda schedule: run(schedule).violation, tries=arguments.tries)
    schedule = draw(arguments.kind, arguments.seed, arguments.seconds)
    small = shrink(shrinker, schedule)
    Path(arguments.out).write_text(small.to_json(), encoding="utf-8")
    _say(
        f"{len(schedule.faults)} faults and {len(schedule.operations)} operations became {len(small.faults)} and "
        f"{len(small.operations)}, {small.seconds:.1f} virtual seconds: {arguments.out}"
    )
    _say(run(small).violation)
    return 1


def _replay(arguments: argparse.Namespace) -> int:
    failed = 0
    for name in arguments.files:
        verdict = run(from_json(Path(name).read_text(encoding="utf-8")))
        _say(f"{name}: {verdict}")
        if not verdict.passed:
            failed += 1
            _failed(verdict, arguments.lines)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
