"""The draws of nemeses: the same seed draws the same steps, and every step matches its name."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jepsen_like.nemeses import crafted_steps, damage, plans, steps
from jepsen_like.nemeses.catalogue import RECIPES
from jepsen_like.nemeses.injections import INJECTIONS
from jepsen_like.nemeses.mixed import drawn
from jepsen_like.nemeses.plans import Options, checked
from jepsen_like.nemeses.steps import Facts, PartitionFacts
from jepsen_like.nemeses.targets import (
    AIMS,
    LEADER_SHAPES,
    ONE_WAY_SHAPES,
    SHAPES,
    aim,
    apart,
    fixed_minority,
    shape,
)
from raftlog.broker.node.descriptors import MIN_DESCRIPTORS, OWN_DESCRIPTORS, PER_CONNECTION
from raftlog.errors import InvalidRequest

SEEDS = st.integers(0, 2**32)
COUNTS = st.sampled_from([1, 2, 3, 4, 5, 7])


def facts(count: int, seed: int = 0, *, known: bool = True) -> Facts:
    nodes = tuple(f"n{number}" for number in range(1, count + 1))
    empty = Facts(nodes, fixed_minority(nodes, random.Random(seed)))
    if not known:
        return empty
    partitions = tuple(
        PartitionFacts("t", number, nodes[number % count], nodes[: min(count, 3)], min(count, 2)) for number in range(4)
    )
    leaders = tuple(sorted({one.leader for one in partitions if one.leader}))
    return replace(empty, leaders=leaders, controller=nodes[-1], partitions=partitions, voters=nodes)


def with_a_small_one(known: Facts) -> Facts:
    """And a partition of two replicas."""
    return replace(known, partitions=(*known.partitions, PartitionFacts("two", 0, "n1", ("n1", "n2"), 1)))


def sees(cut: tuple[str, ...], node: str, nodes: tuple[str, ...]) -> set[str]:
    """The nodes that it can reach and hear, including itself."""
    return {other for other in nodes if other == node or not {f"{node}>{other}", f"{other}>{node}"} & set(cut)}


# --- Targets ----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(SEEDS, COUNTS, st.sampled_from(AIMS), st.booleans())
def test_aims_have_their_named_sizes(seed: int, count: int, name: str, known: bool) -> None:
    known_facts = facts(count, known=known)
    found = aim(name, known_facts, random.Random(seed))
    assert found and len(set(found)) == len(found) and set(found) <= set(known_facts.nodes)
    assert list(found) == sorted(found)
    if name == "one":
        assert len(found) == 1
    elif name == "minority" and count > 2:
        assert len(found) < count / 2
    elif name == "majority":
        assert len(found) == count // 2 + 1
    elif name == "all":
        assert found == known_facts.nodes
    elif name == "leaders" and known:
        assert set(found) <= {*known_facts.leaders, known_facts.controller}


@settings(max_examples=50, deadline=None)
@given(SEEDS, COUNTS)
def test_files_are_damaged_on_less_than_half_of_the_nodes_and_always_the_same(seed: int, count: int) -> None:
    nodes = facts(count).nodes
    found = fixed_minority(nodes, random.Random(seed))
    assert found == fixed_minority(nodes, random.Random(seed))
    assert len(found) < count / 2 or (count <= 2 and len(found) == 1)
    rng = random.Random(seed)
    for _ in range(20):
        for draw in (plans.flip, plans.truncate, plans.roll_back):
            step = draw(rng, replace(facts(count), minority=found), Options())
            assert isinstance(step, steps.OnFile) and step.node in found


# --- Links ------------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(SEEDS, COUNTS, st.sampled_from([*SHAPES, *ONE_WAY_SHAPES, *LEADER_SHAPES]))
def test_shapes_cut_links_that_exist(seed: int, count: int, name: str) -> None:
    nodes = facts(count).nodes
    cut = shape(name, facts(count), random.Random(seed))
    assert set(cut) <= {f"{a}>{b}" for a in nodes for b in nodes if a != b}
    assert list(cut) == sorted(set(cut))


@pytest.mark.parametrize("seed", range(10))
def test_the_links_of_each_shape(seed: int) -> None:
    five = facts(5)
    rng = random.Random(seed)
    alone = shape("one", five, rng)
    assert sorted(len(sees(alone, node, five.nodes)) for node in five.nodes) == [1, 4, 4, 4, 4]
    halves = shape("majority", five, rng)
    assert sorted(len(sees(halves, node, five.nodes)) for node in five.nodes) == [2, 2, 3, 3, 3]
    bridge = shape("bridge", five, rng)
    assert sorted(len(sees(bridge, node, five.nodes)) for node in five.nodes) == [3, 3, 3, 3, 5]
    inward, outward = shape("one-way-in", five, rng), shape("one-way-out", five, rng)
    assert len({name.partition(">")[2] for name in inward}) == 1 and len(inward) == 4
    assert len({name.partition(">")[0] for name in outward}) == 1 and len(outward) == 4
    assert len(shape("one-way-link", five, rng)) == 1
    assert shape("controller", five, rng) == apart([("n5",)], five.nodes)


@pytest.mark.parametrize("count", [5, 7, 9])
def test_in_a_ring_every_node_sees_a_majority_and_no_two_the_same(count: int) -> None:
    ring = facts(count)
    cut = shape("majorities-ring", ring, random.Random(count))
    seen = [frozenset(sees(cut, node, ring.nodes)) for node in ring.nodes]
    assert all(len(view) > count / 2 for view in seen) and len(set(seen)) == count


def test_a_ring_of_three_would_cut_every_connection_and_is_not_drawn() -> None:
    assert shape("majorities-ring", facts(3), random.Random(1)) == ()
    assert plans.partition(random.Random(1), facts(3), Options(), ["majorities-ring"]) is None


def test_unknown_leaders_are_not_cut_off() -> None:
    assert shape("leaders", facts(3, known=False), random.Random(1)) == ()


# --- Draws ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("known", [True, False])
def test_a_seed_draws_the_same_steps_and_each_has_an_injection(name: str, known: bool) -> None:
    for count in (3, 5):
        one, other = ([*draws(name, facts(count, known=known), 30)] for _ in range(2))
        assert one == other
        for step in one:
            if step is not None:
                assert type(step) in INJECTIONS
                assert step.targets and step.claims and step.kind
    if known:
        assert any(step is not None for step in draws(name, with_a_small_one(facts(5)), 30)), "it never does anything"


def draws(name: str, known: Facts, count: int) -> list[steps.Step | None]:
    rng = random.Random(f"seed {name}")
    return [draw(rng, known, Options()) for _ in range(count) for draw in RECIPES[name].draws]


def test_the_replica_that_is_left_behind_is_the_only_other_one() -> None:
    step = plans.leave_behind(random.Random(1), with_a_small_one(facts(3)), Options())
    assert isinstance(step, crafted_steps.LeaveBehind)
    assert (step.nodes, step.topic, step.partition) == (("n2", "n1"), "two", 0)
    assert plans.leave_behind(random.Random(1), with_a_small_one(facts(2)), Options()) is None, "no quorum without both"
    assert plans.leave_behind(random.Random(1), facts(5), Options()) is None


def test_every_step_has_a_nemesis_that_draws_it() -> None:
    drawn_types = {type(step) for name in RECIPES for step in draws(name, with_a_small_one(facts(5)), 40)} - {
        type(None)
    }
    assert drawn_types == set(INJECTIONS)


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.sampled_from([3, 5, 7]), st.sampled_from(["pause", "cut"]))
def test_victim_and_minority_are_a_majority_and_so_are_victim_and_others(seed: int, count: int, by: str) -> None:
    step = plans.amnesia(random.Random(seed), facts(count), Options(hold=(1.0, 2.0)), by)
    assert isinstance(step, steps.AmnesiaInTheMiddle)
    assert sorted(step.targets) == sorted(facts(count).nodes)
    assert len(step.minority) + 1 > count / 2 and len(step.others) + 1 > count / 2
    assert len(step.minority) < count / 2
    assert len(step.victims) == 1 and {*step.victims} <= {*facts(count).leaders, "n" + str(count)}


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.sampled_from([3, 5]))
def test_all_except_a_leader_forget(seed: int, count: int) -> None:
    rng, known = random.Random(seed), facts(count)
    step = plans.followers_forget(rng, known, Options())
    assert isinstance(step, steps.AmnesiaInTheMiddle) and {*step.others} <= {*known.leaders}
    assert sorted((*step.victims, *step.others)) == sorted(known.nodes) and not step.minority
    quorum = plans.followers_forget(rng, known, Options(shapes=("controller",)))
    assert isinstance(quorum, steps.AmnesiaInTheMiddle) and quorum.others == (known.controller,)


@settings(max_examples=50, deadline=None)
@given(SEEDS)
def test_the_quorums_leader_is_killed_while_the_others_are_slow(seed: int) -> None:
    step = plans.slow_kill(random.Random(seed), facts(3), checked({"aims": ["controller"]}))
    assert (step.targets, step.slowed) == (("n3",), ("n1", "n2"))
    everybody = plans.slow_kill(random.Random(seed), facts(3), Options(aims=("all",)))
    assert everybody.targets == everybody.slowed == ("n1", "n2", "n3")


@settings(max_examples=50, deadline=None)
@given(SEEDS)
def test_an_overtaken_move_goes_to_a_node_without_data(seed: int) -> None:
    assert plans.move_and_kill(random.Random(seed), facts(3), Options()) is None, "nobody is left to receive"
    step = plans.move_and_kill(random.Random(seed), facts(5), Options())
    assert isinstance(step, crafted_steps.MoveAndKill)
    one = facts(5).partitions[step.partition]
    assert step.nodes == (one.leader,) and {*step.nodes, *step.followers} == {*one.replicas}
    assert step.receiver not in one.replicas


@settings(max_examples=50, deadline=None)
@given(SEEDS)
def test_clocks_leap_far_enough_to_be_noticed_and_no_further_than_jepsens(seed: int) -> None:
    step = plans.bump(random.Random(seed), facts(5), Options())
    assert isinstance(step, steps.Bump) and len(step.nodes) == len(step.seconds)
    assert all(plans.BUMP_SECONDS_MIN <= abs(seconds) <= plans.BUMP_SECONDS_MAX for seconds in step.seconds)


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.sampled_from([3, 5]))
def test_a_minority_starts_with_clocks_that_are_wrong_by_days(seed: int, count: int) -> None:
    step = plans.wrong_start(random.Random(seed), facts(count), Options())
    assert isinstance(step, steps.WrongStart) and len(step.nodes) == len(step.seconds)
    assert 1 <= len(step.nodes) <= (count - 1) // 2
    assert all(8 <= abs(seconds) / 86_400 <= 40 for seconds in step.seconds)
    assert step.claims >= {f"clock:{step.nodes[0]}"} and len(step.claims) == 2 * len(step.nodes)


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.sampled_from([1, 3, 5]))
def test_a_node_short_of_descriptors_can_start_and_is_crowded(seed: int, count: int) -> None:
    few = plans.few_descriptors(random.Random(seed), facts(count), Options())
    assert isinstance(few, steps.FewDescriptors) and 0 <= few.spare <= 16 and set(few.nodes) <= set(facts(count).nodes)
    idle = plans.idle_connections(random.Random(seed), facts(count), Options())
    assert isinstance(idle, steps.IdleConnections) and idle.limit >= MIN_DESCRIPTORS
    assert idle.connections > (idle.limit - OWN_DESCRIPTORS) / (2 * PER_CONNECTION), "more than a listener takes"
    assert few.aim in AIMS and idle.aim in AIMS


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.sampled_from([3, 5]))
def test_moves_keep_the_minimum_and_name_nodes_that_exist(seed: int, count: int) -> None:
    known = facts(count)
    step = plans.reassign(random.Random(seed), known, Options())
    assert isinstance(step, steps.Reassign | None)
    for _, partition, wanted in step.moves if step else ():
        assert 2 <= len(set(wanted)) == len(wanted) <= 3 and set(wanted) <= set(known.nodes)
        assert wanted != known.partitions[partition].replicas


def test_a_cluster_without_spare_nodes_is_not_drained_and_two_voters_stay() -> None:
    assert plans.drain(random.Random(1), facts(3), Options()) is None
    assert plans.drain(random.Random(1), facts(5), Options()) is not None
    assert plans.remove_voter(random.Random(1), replace(facts(3), voters=("n1", "n2")), Options()) is None


def test_mixes_are_sometimes_nothing_and_never_everything() -> None:
    rng = random.Random(3)
    mixes = [drawn(rng, [*RECIPES], 3) for _ in range(400)]
    assert 60 < sum(not mix for mix in mixes) < 140
    assert {len(mix) for mix in mixes} == {0, 1, 2, 3}
    assert {name for mix in mixes for name in mix} == set(RECIPES)
    assert {len(drawn(rng, [*RECIPES], 1)) for _ in range(100)} == {0, 1}
    assert plans.checked({"at_once": 1}).at_once == 1 and plans.checked({}).at_once == 3


# --- Files ------------------------------------------------------------------------------------------------------------

TOPIC = "partitions/" + "0a" * 16 + "-0/"
FILES = {
    TOPIC + "0" * 20 + ".log": 1000,
    TOPIC + "0" * 17 + "500.log": 0,
    TOPIC + "0" * 20 + ".index": 52,
    TOPIC + "0" * 20 + ".log.17.quarantined": 10,
    TOPIC + "leader-epochs": 30,
    "quorum/journal-0000000001.log": 900,
    "quorum/journal-0000000002.log": 300,
    "quorum/snapshot": 100,
    "node.json": 80,
}


def test_only_files_of_the_kind_that_have_bytes_are_chosen() -> None:
    def names(what: str) -> set[str | None]:
        return {damage.chosen(what, FILES, random.Random(seed)) for seed in range(20)}

    assert names("segment") == {TOPIC + "0" * 20 + ".log"}
    assert names("index") == {TOPIC + "0" * 20 + ".index"}
    assert names("epoch-history") == {TOPIC + "leader-epochs"}
    assert names("journal") == names("hard-state") == {"quorum/journal-0000000002.log"}, "the newest counts"
    last = TOPIC + "0" * 17 + "900.log"
    growing = {damage.chosen("segment", {**FILES, last: 9}, random.Random(seed), growing=True) for seed in range(20)}
    assert growing == {last}, "the others do not change any more"
    assert names("producers") == names("checkpoint") == {None}
    assert not any("node.json" in names(what) for what in damage.FILES)


def test_of_the_drawn_kinds_the_first_existing_one_is_damaged() -> None:
    assert damage.first_there(("producers", "checkpoint", "index", "segment"), FILES) == "index"
    assert damage.first_there(("producers", "checkpoint"), FILES) is None
    first = set()
    for seed in range(200):
        for draw in (plans.flip, plans.truncate):
            step = draw(random.Random(seed), facts(3), Options())
            assert isinstance(step, steps.OnFile) and set(step.files) == set(damage.FILES)
            first.add(damage.first_there(step.files, FILES))
    assert first == {"segment", "index", "epoch-history", "journal", "hard-state", "snapshot"}, "each has its turn"
    asked = plans.truncate(random.Random(1), facts(3), Options(files=("voters",)))
    assert isinstance(asked, steps.OnFile) and asked.files == ("voters",)


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(1, 5000), st.integers(1, 20), st.sampled_from([*damage.FILES]))
def test_flips_change_the_exact_number_of_bits_and_twice_is_none(seed: int, size: int, count: int, what: str) -> None:
    at = damage.bits(what, size, count, random.Random(seed))
    assert len(set(at)) == len(at) == min(count, 8 * min(size, damage.HARD_STATE_BYTES))
    content = random.Random(seed).randbytes(size)
    changed = damage.flipped(content, at)
    assert sum((a ^ b).bit_count() for a, b in zip(content, changed, strict=True)) == len(at)
    assert damage.flipped(changed, at) == content
    if what == "hard-state":
        assert all(byte < damage.HARD_STATE_BYTES for byte, _ in at)


# --- Options ----------------------------------------------------------------------------------------------------------


def test_own_options_are_read_and_others_are_left() -> None:
    given_options = {"aims": ["one"], "hold": [1, 2], "quiet": [0, 0], "files": ["segment"], "keys": 7, "redraw": 10}
    read = checked(given_options)
    assert read == Options(aims=("one",), hold=(1.0, 2.0), quiet=(0.0, 0.0), files=("segment",), redraw=10.0)
    assert plans.kill(random.Random(1), facts(3), read) == steps.Kill(read_one(3), "one")


def read_one(count: int) -> tuple[str, ...]:
    rng = random.Random(1)
    rng.randrange(0, 1)
    return aim("one", facts(count), rng)


@pytest.mark.parametrize(
    "wrong",
    [
        {"aims": ["everybody"]},
        {"aims": []},
        {"shapes": ["triangle"]},
        {"files": ["node.json"]},
        {"hold": [5]},
        {"hold": [5, 1]},
        {"hold": [-1, 1]},
        {"quiet": ["a", "b"]},
        {"redraw": "soon"},
        {"redraw": float("nan")},
    ],
)
def test_invalid_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="nemesis's option"):
        checked(wrong)
