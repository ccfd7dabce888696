"""The limits of the metadata: many brokers, partitions and groups, and the cost of each.

    python benchmarks/scale.py                     # 5 voters, 200 brokers, 200,000 partitions, 5,000 groups
    python benchmarks/scale.py --smoke             # the same at a twentieth of the size
    python benchmarks/scale.py --only image        # one part: image, cluster
    python benchmarks/scale_plots.py               # docs/scale/*.svg from the results

*image*: the state machine alone, at several sizes, each in a process of its own: memory, and the processor time of each
operation. *cluster*: voters in virtual time with a core each (`scale_world.py`): the cost of brokers that only send
heartbeats, the number of group commits that the quorum can handle, the effect of a dying broker or controller, and the
time that a cold broker takes to catch up.

Results are printed, and written as JSON lines to `--results` (default `build/scale.jsonl`), from which the plots are
made. If more than the limit of 100,000 partitions are requested, the limit is lifted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from measuring import Cores, console, machine
from rich.table import Table

PARTS = ("image", "cluster")
SMOKE = {"partitions": 10_000, "brokers": 20, "groups": 250, "sizes": "2000,5000,10000", "seconds": 2.0}
FULL_SIZES = (10_000, 50_000, 100_000, 150_000, 200_000)


def run_part(part: str, arguments: dict[str, Any], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run a part in a process of its own, so that its memory is not counted in the next. Results are stored line by
    line: an interrupted run loses only the missing ones."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"scale_{part}.py")
    command = [sys.executable, script, json.dumps(arguments)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root, "PYTHONHASHSEED": "0"}
    )
    assert process.stdout is not None
    found = []
    with open(options.results, "a") as file:
        for line in process.stdout:
            found.append(json.loads(line))
            file.write(json.dumps({**found[-1], "smoke": options.smoke}) + "\n")
            file.flush()
            console.print(shown(found[-1]))
    if process.wait():
        raise SystemExit(f"{part} ended with {process.returncode}: see above")
    return found


def shown(found: dict[str, Any]) -> str:
    """Return one line for people."""
    rest = {name: value for name, value in found.items() if name != "what"}
    return f"{found['what']}: " + ", ".join(f"{name} {_number(value)}" for name, value in rest.items())


def _number(value: Any) -> str:
    return f"{value:,.3f}".rstrip("0").rstrip(".") if isinstance(value, float) else f"{value:,}"


def image_table(rows: list[dict[str, Any]]) -> Table:
    table = Table(
        "", *(f"{row['partitions']:,}" for row in rows), title="the image alone: seconds of one core, and memory"
    )
    for name in rows[0]:
        if name not in ("what", "partitions"):
            table.add_row(name.replace("_", " "), *(_number(row[name]) for row in rows))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--voters", type=int, default=5)
    parser.add_argument("--brokers", type=int, default=200, help="number of brokers, including voters")
    parser.add_argument("--partitions", type=int, default=200_000)
    parser.add_argument("--groups", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="virtual seconds of each load")
    parser.add_argument("--sizes", default=",".join(map(str, FULL_SIZES)), help="sizes of the image in partitions")
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--results", default="build/scale.jsonl")
    options = parser.parse_args()
    if options.smoke:
        vars(options).update(SMOKE)
    console.print(machine())
    cores = Cores.now()
    asked = {name: getattr(options, name) for name in ("voters", "brokers", "partitions", "groups", "seconds")}
    os.makedirs(os.path.dirname(options.results) or ".", exist_ok=True)
    if options.only in (None, "image"):
        rows = []
        for size in map(int, options.sizes.split(",")):
            groups = max(1, options.groups * size // options.partitions)
            rows += run_part("image", {**asked, "partitions": size, "groups": groups}, options)
        console.print(image_table(rows))
    if options.only in (None, "cluster"):
        run_part("cluster", asked, options)
    console.print(Cores.now().since(cores), machine())


if __name__ == "__main__":
    main()
