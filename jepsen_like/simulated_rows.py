"""The scoreboard's rows that no real cluster makes: seeds of simulated worlds, and planted bugs. Pure.

| row | what |
|---|---|
| `Sim1` | seeds of each kind of world, every property after every event; only those of the present code count |
| `Sim2` | struck: the worlds' transports are in memory already, so sockets in their place would be a real cluster |
| `Sim3` | the same seeds' ends: all is healed, and everything has to make progress in time |
| `P` | planted bugs, of which each has to be found by a seed or by a story |

`K`, the checkers' corpora, is a test (`tests/unit/test_checkers_corpora.py`), since these are no part of the project.
What is *not* here: running them (`simulator/shard.py`, `planted/`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .simulator.shard import Summary

TARGET_SEEDS = 10_000
SECONDS_A_SEED = 60.0

Row = Mapping[str, object]


def simulated(summaries: Iterable[Summary]) -> list[Row]:
    """`Sim1` to `Sim3`, of seeds at their full length."""
    whole = [one for one in summaries if one.seconds_each >= SECONDS_A_SEED]
    rows: list[Row] = [
        {
            "cell": "Sim1",
            "workload": one.kind,
            "fault": "everything, drawn from the seed",
            "target_s": f"{TARGET_SEEDS * SECONDS_A_SEED:g}",
            "seconds": round(one.virtual_seconds),
            "seconds_now": round(one.virtual_seconds),
            "runs": len(one.seeds),
            "passed": len(one.seeds) - len(one.violations),
            "anomalies_now": len(one.violations),
            "reference": "J7",
        }
        for one in whole
    ]
    rows.append({"cell": "Sim2", "fault": "struck: the simulated transports are in memory already"})
    rows.append(
        {
            "cell": "Sim3",
            "workload": ", ".join(one.kind for one in whole),
            "fault": "healed: progress in time, at the end of each of these seeds",
            "runs": sum(len(one.seeds) for one in whole),
        }
    )
    return rows


def planted(bugs: Sequence[str], by_seed: Iterable[str], by_story: Iterable[str]) -> Row:
    """`P`. What neither a seed nor a story finds is an anomaly of the suite."""
    seeds, stories = set(by_seed) & set(bugs), set(by_story) & set(bugs)
    missed = set(bugs) - seeds - stories
    return {
        "cell": "P",
        "workload": f"{len(seeds)} by a seed, {len(stories - seeds)} by a story",
        "fault": "planted bugs",
        "runs": len(bugs),
        "passed": len(bugs) - len(missed),
        "anomalies_now": " ".join(sorted(missed)),
    }
