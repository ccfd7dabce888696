"""The scoreboard's rows that are not cells of real clusters. Pure.

| row | what |
|---|---|
| `Sim1` | seeds of each kind of world, every property checked after every event; only those of the present code count |
| `Sim2` | dropped: the worlds' transports are in memory already, so sockets in their place would be a real cluster |
| `Sim3` | the ends of the same seeds: after the heal, everything has to make progress in time |
| `P` | planted bugs, each of which a seed or a story has to find |
| `Pr` | planted bugs that show in a real cluster, each of which has to be found there in ten minutes |
| `K` | the checkers' corpora: other projects' histories with known verdicts |
| `S` | Spark's driver, JVM and workers killed at a random point of a streaming query that writes |
| `L` | simultaneous power failures of three nodes under load, in many rounds (`make power-loss`) |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jepsen_like.simulator.shards.shard import Summary

TARGET_SEEDS = 10_000
SECONDS_A_SEED = 60.0
TARGET_POWER_FAILURES = TARGET_SPARK_KILLS = 20

Row = Mapping[str, object]


def simulated(summaries: Iterable[Summary]) -> list[Row]:
    """Return the rows `Sim1` to `Sim3`, from seeds of full length."""
    whole = [one for one in summaries if one.seconds_each >= SECONDS_A_SEED]
    rows: list[Row] = [
        {
            "cell": "Sim1",
            "workload": one.kind,
            "fault": f"{one.kind}: every fault, drawn from the seed",
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
    rows.append({"cell": "Sim2", "fault": "omitted: the simulated transports are in memory already"})
    rows.append(
        {
            "cell": "Sim3",
            "workload": ", ".join(one.kind for one in whole),
            "fault": "progress in time after the heal, at the end of each of these seeds",
            "runs": sum(len(one.seeds) for one in whole),
        }
    )
    return rows


def planted(bugs: Sequence[str], by_seed: Iterable[str], by_story: Iterable[str]) -> Row:
    """Return row `P`. A bug that neither a seed nor a story finds is an anomaly of the suite."""
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


def hunted(bugs: Sequence[str], found: Mapping[str, float], seconds: float) -> Row:
    """Return row `Pr`. `found`: bug → seconds until it was found."""
    in_time = {bug for bug in bugs if found.get(bug, seconds + 1) <= seconds}
    return {
        "cell": "Pr",
        "workload": f"median {_median(list(found.values())):g} s" if found else "",
        "fault": f"planted bugs in real clusters, within {seconds:g} s each",
        "seconds": round(sum(found.values())),
        "runs": len(bugs),
        "passed": len(in_time),
        "unknown": len(bugs) - len(in_time),
    }


def corpora(lines: Iterable[Mapping[str, Any]]) -> Row:
    """Return row `K`, from the last line of each corpus."""
    last = {str(line["corpus"]): line for line in lines}
    cases, agreed = (Counter({name: int(line[key]) for name, line in last.items()}) for key in ("cases", "agreed"))
    return {
        "cell": "K",
        "workload": " ".join(f"{name}={agreed[name]}/{cases[name]}" for name in sorted(last)),
        "fault": "histories of known verdict",
        "runs": cases.total(),
        "passed": agreed.total(),
        "anomalies_now": " ".join(sorted(name for name in last if agreed[name] < cases[name])),
        "last_commit": " ".join(sorted({str(line["commit"]) for line in last.values()})),
        "reference": "porcupine, knossos, Jepsen's Kafka cases",
    }


def spark_kills(lines: Sequence[Mapping[str, Any]]) -> Row:
    """Return row `S`: every kill has to end with each record in the sink exactly once.

    Kills of a query into Parquet are kept, but do not count: that sink is Spark's own.
    """
    lines = [line for line in lines if line.get("target", "topic") == "topic"]
    right = sum(line["verdict"] == "right" for line in lines)
    return {
        "cell": "S",
        "workload": "a Spark query from topic to topic",
        "fault": "SIGKILL of driver, JVM and workers",
        "target_rounds": TARGET_SPARK_KILLS,
        "rounds": right,
        "runs": len(lines),
        "passed": right,
        "anomalies": f"wrong={len(lines) - right}" if right < len(lines) else "",
        "last_commit": lines[-1]["commit"] if lines else "",
    }


def power_failures(lines: Iterable[Mapping[str, Any]], is_now: Callable[[str, bool], bool]) -> Row:
    """Return row `L`. `is_now`: whether a commit's result, clean or not, judged the present product."""
    rounds = passed = now = 0
    lost: Counter[str] = Counter()
    last = ""
    for line in lines:
        last = str(line["commit"])
        rounds += 1
        held = not line["acknowledged_lost"]
        counts = is_now(last, held)
        passed += held
        now += counts and held
        lost["acknowledged-lost"] += len(line["acknowledged_lost"]) * counts
    return {
        "cell": "L",
        "workload": "topics, settings, records",
        "fault": "power failure of all nodes at once, 1,000 changes of the metadata a round",
        "nodes": 3,
        "target_rounds": TARGET_POWER_FAILURES,
        "rounds": passed,
        "rounds_now": now,
        "runs": rounds,
        "passed": passed,
        "anomalies_now": " ".join(f"{name}={number}" for name, number in lost.items() if number),
        "last_commit": last,
    }


def _median(numbers: list[float]) -> float:
    return sorted(numbers)[len(numbers) // 2]
