"""`python -m jepsen_like.planted`: the planted bugs, and how fast the simulation finds them.

list                    name, hole, and the seed or the story that finds it
search [NAME...]        find the first seed that detects each; kept in detections.json
pin                     record the replaced code after a review of the bugs
shrink NAME OUT         write a minimal schedule that detects the bug to a file
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jepsen_like.simulator.shards.schedules import AnySchedule, draw, run, shrink
from jepsen_like.simulator.shards.shrink import Shrinker

from .bugs import PINNED, SIMULATED
from .catalogue import BUGS, SECONDS, load_detections, save_detections, search
from .patches import plant, save_pins
from .stories import STORIES


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Exit code 0: done; 1: a bug was not found."""
    parser = argparse.ArgumentParser(
        prog="python -m jepsen_like.planted",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="", required=True)
    commands.add_parser("list").set_defaults(run=_list)
    commands.add_parser("pin").set_defaults(run=_pin)
    searching = commands.add_parser("search")
    searching.add_argument("names", nargs="*", metavar="NAME")
    searching.add_argument("--first", type=int, default=1, help="the first seed")
    searching.add_argument("--seeds", type=int, default=1000, help="maximum number of seeds")
    searching.set_defaults(run=_search)
    shrinking = commands.add_parser("shrink")
    shrinking.add_argument("name", metavar="NAME", choices=sorted(BUGS))
    shrinking.add_argument("out", metavar="OUT")
    shrinking.add_argument("--tries", type=int, default=300, help="maximum number of runs")
    shrinking.set_defaults(run=_shrink)
    parsed = parser.parse_args(arguments)
    return int(parsed.run(parsed))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _list(parsed: argparse.Namespace) -> int:
    known = load_detections()
    for name, bug in BUGS.items():
        found = known.get(name)
        ways = [f"seed {found.seed} {found.law}"] if found else []
        ways += [f"story {STORIES[name]}"] if name in STORIES else []
        _say(f"{name:40} {', '.join(ways) or bug.found_by:28} {bug.hole}")
    return 0


def _pin(parsed: argparse.Namespace) -> int:
    _say(f"{len(save_pins(PINNED))} functions pinned")
    return 0


def _search(parsed: argparse.Namespace) -> int:
    missed = 0
    for name in parsed.names or [bug.name for bug in SIMULATED]:
        found = search(BUGS[name], first=parsed.first, seeds=parsed.seeds)
        if found is None:
            missed += 1
            _say(f"{name}: not found by {parsed.seeds} seeds")
            continue
        save_detections({**load_detections(), name: found})
        _say(f"{name}: seed {found.seed}, {found.law}, {found.virtual_seconds} s into it")
    return 1 if missed else 0


def _shrink(parsed: argparse.Namespace) -> int:
    bug = BUGS[parsed.name]
    schedule = draw(bug.world, load_detections()[parsed.name].seed, SECONDS[bug.world])
    schedule = replace(schedule, planted=parsed.name)

    def planted(candidate: AnySchedule) -> str:
        with plant(bug):
            return run(candidate).violation

    small = shrink(Shrinker(planted, tries=parsed.tries), schedule)
    Path(parsed.out).write_text(small.to_json(), encoding="utf-8")
    _say(
        f"{parsed.name}: {len(schedule.faults)} faults, {len(schedule.operations)} operations became "
        f"{len(small.faults)} and {len(small.operations)}: {parsed.out}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
