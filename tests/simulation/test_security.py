"""Users, tokens and access rules in simulated quorums.

S12 is checked after every entry, and progress at the end (S10); each planted bug of security is found by the seed that
is known to find it.
"""

from __future__ import annotations

import pytest

from jepsen_like.planted.catalogue import BUGS, load_detections, run_planted, search
from jepsen_like.planted.patches import SECURITY
from jepsen_like.simulator.security.run import run_security_seed
from jepsen_like.simulator.security.schedule import SECURITY_OPERATIONS
from jepsen_like.simulator.security.truth import SecurityTruth
from jepsen_like.simulator.shards.schedules import draw, from_json, run
from jepsen_like.simulator.world.violation import Violation
from metadata.commands.security import ChangeSecurity, RemoveToken, SecurityChange
from tests.support.metadata.security import put_token, put_user, secure_cluster, token_id_of

SECONDS = 12.0
SEEDS = range(1, 9)
MORE_SEEDS = 40
QUICK = [name for name, bug in BUGS.items() if bug.found_by == SECURITY]


def test_security_keeps_every_property_s12() -> None:
    verdicts = [run_security_seed(seed, SECONDS) for seed in SEEDS]
    assert {verdict.seed: verdict.violation for verdict in verdicts if not verdict.passed} == {}
    # The run was not empty.
    assert sum(verdict.calls["security_applied"] for verdict in verdicts) > 10 * len(SEEDS)
    assert sum(verdict.calls["security_refused"] for verdict in verdicts) > 3 * len(SEEDS)
    assert sum(verdict.calls["tokens_made"] for verdict in verdicts) > 8 * len(SEEDS)
    assert sum(verdict.calls["tokens_gone"] for verdict in verdicts) > 5 * len(SEEDS)
    assert sum(count for verdict in verdicts for count in verdict.faults.values()) > 10 * len(SEEDS)


def test_one_schedule_gives_one_trace_from_a_file_too() -> None:
    schedule = draw("security", 3, 6.0)
    assert {one.kind for one in schedule.operations} & set(SECURITY_OPERATIONS)
    first, second = run(schedule), run(from_json(schedule.to_json()))
    assert first.trace == second.trace
    assert first.passed, first.violation


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_of_security_is_found(name: str) -> None:
    known = load_detections()[name]
    if not run_planted(BUGS[name], known.seed).violation:
        assert search(BUGS[name], first=known.seed + 1, seeds=MORE_SEEDS) is not None, f"{name} is no longer found"


def test_a_token_that_comes_back_is_found_s12() -> None:
    cluster, truth = secure_cluster(), SecurityTruth()

    def entry(*changes: SecurityChange) -> None:
        command = ChangeSecurity(changes)
        truth.proposed(command)
        cluster.do(command)
        truth.applied(cluster.image.index, cluster.image, cluster.view.security)

    entry(put_user("alice"), put_token(1, "alice"))
    entry(RemoveToken(token_id_of(1)))
    with pytest.raises(Violation, match=r"S12\.2"):
        entry(put_token(1, "alice"))


@pytest.mark.soak
def test_hundreds_of_seeds_keep_every_property() -> None:
    for seed in range(1_000, 1_200):
        verdict = run_security_seed(seed, 30.0)
        assert verdict.passed, verdict.violation
