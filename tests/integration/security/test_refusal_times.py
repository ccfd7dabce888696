"""The time of a refusal tells nothing: a statistical test with the real hash. S12.

Run it by hand: `python -P -m pytest -q -m soak tests/integration/security/test_refusal_times.py`. It takes a minute
and a half of CPU.

Refusals of two kinds are timed one after the other in random order, so that whatever else the machine does meets both
alike. The rank sum of one kind (Mann and Whitney, 1947) then has a known distribution if both take equally long. A leak
is a rank sum that this cannot explain, with medians that differ by a fiftieth: among microseconds, nanoseconds of the
interpreter's own are beyond chance as well, and cannot be measured from outside. The clock is that of the thread's
CPU, with less noise than an attacker has. Each planted shortcut is found by the same measurement.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy
import pytest

from raftlog.broker.security.passwords import passwords
from raftlog.broker.security.passwords.checks import PasswordChecks
from raftlog.broker.security.passwords.scram import ScramServer
from raftlog.security.secrets import Secret
from tests.support.security.authenticated_world import AuthenticatedWorld
from tests.support.security.refusals import (
    DISABLED,
    KNOWN,
    REMOVED,
    REVOKED,
    SCRAM_NAMES,
    UNKNOWN,
    UNKNOWN_ID,
    WRONG_SECRET,
    Refused,
    ShortcutChecks,
    ShortcutScram,
    answers_of,
    passwords_of,
    plant_a_stretched_digest_of_known_ids,
    scram_exchange,
    tokens_of,
)

pytestmark = [pytest.mark.integration, pytest.mark.soak]

SIGMAS = 5.0
"""Equal times exceed it once in 1.7 million measurements."""
TOLERANCE = 0.02
"""The least difference of the medians that counts, as a part of the smaller one."""

Sample = Callable[[], Callable[[], object]]
"""Prepares one measurement, and returns what is timed."""


class Comparison(NamedTuple):
    """The times of two kinds of refusal."""

    deviation: float
    """By how many standard deviations the rank sum of the first is off."""
    difference: float
    """Of the medians, as a part of the smaller one."""

    @property
    def is_leak(self) -> bool:
        return abs(self.deviation) >= SIGMAS and self.difference >= TOLERANCE


def compared(one: Sample, other: Sample, samples: int) -> Comparison:
    """Measure `samples` of each."""
    order = [one, other] * samples
    random.Random(7).shuffle(order)
    # All before the first measurement: what one kind's credentials cost to make must not warm or cool its own caches.
    runs = [sample() for sample in order]
    seconds = []
    for run in runs:
        before = time.thread_time_ns()
        run()
        seconds.append(time.thread_time_ns() - before)
    is_one = [sample is one for sample in order]
    faster, slower = sorted(
        statistics.median(value for value, chosen in zip(seconds, is_one, strict=True) if chosen is wanted)
        for wanted in (True, False)
    )
    return Comparison(rank_sum_deviation(is_one, seconds), slower / faster - 1)


def rank_sum_deviation(is_one: Sequence[bool], values: Sequence[float]) -> float:
    """Return the normal approximation of the rank sum; equal values share the mean of their ranks."""
    chosen, measured = numpy.asarray(is_one), numpy.asarray(values)
    ordered = numpy.sort(measured)
    ranks = (numpy.searchsorted(ordered, measured, "left") + numpy.searchsorted(ordered, measured, "right") + 1) / 2
    count, total = int(chosen.sum()), len(measured)
    mean = count * (total + 1) / 2
    variance = count * (total - count) / total * ranks.var(ddof=1)
    return float((ranks[chosen].sum() - mean) / variance**0.5)


def test_the_statistic_itself() -> None:
    """Of 1..6 the sum of the ranks 1, 2, 3 is 6; its mean is 10.5 and its variance 5.25."""
    assert rank_sum_deviation([True] * 3 + [False] * 3, [1, 2, 3, 4, 5, 6]) == pytest.approx(-4.5 / 5.25**0.5)
    assert rank_sum_deviation([True, False, True, False], [1, 1, 2, 2]) == 0


class CheaperForUnknownNames:
    """The real hash, with a planted bug: a name without a hash costs an eighth less memory."""

    prepared = staticmethod(passwords.prepared)
    matches = staticmethod(passwords.matches)

    @staticmethod
    def unmatched_phc() -> str:
        full = f"m={passwords.MEMORY_KIB},"
        phc = passwords.unmatched_phc()
        assert full in phc
        return phc.replace(full, f"m={passwords.MEMORY_KIB * 7 // 8},")


def password_samples(hasher: object = passwords, checks: type[PasswordChecks] = PasswordChecks) -> dict[str, Sample]:
    world = AuthenticatedWorld(hasher=hasher, checks=checks)  # type: ignore[arg-type]
    phc = passwords.new_material(Secret("correct horse")).argon2
    return samples_of(world, passwords_of(world, phc=phc), 1)


def token_samples(world: AuthenticatedWorld, refused: Mapping[str, Refused]) -> dict[str, Sample]:
    return samples_of(world, refused, 20)


def samples_of(world: AuthenticatedWorld, refused: Mapping[str, Refused], each: int) -> dict[str, Sample]:
    """Kind → a sample of several refusals, whose credentials are made before."""

    def sample(make: Refused) -> Sample:
        def prepare() -> Callable[[], object]:
            presented = [make() for _ in range(each)]
            return lambda: [answers_of(world, one) for one in presented]

        return prepare

    return {kind: sample(make) for kind, make in refused.items()}


def scram_samples(server: type[ScramServer] = ScramServer) -> dict[str, Sample]:
    def sample(name: str) -> Sample:
        def prepare() -> Callable[[], object]:
            exchanges = [scram_exchange(name, server) for _ in range(20)]
            return lambda: [exchange() for exchange in exchanges]

        return prepare

    return {kind: sample(name) for kind, name in SCRAM_NAMES.items()}


PASSWORD_SAMPLES, FAST_SAMPLES = 150, 1000


@pytest.mark.parametrize("kind", [UNKNOWN, DISABLED, REMOVED])
def test_a_wrong_login_takes_as_long_as_a_wrong_password_s12(kind: str) -> None:
    samples = password_samples()
    comparison = compared(samples[KNOWN], samples[kind], PASSWORD_SAMPLES)
    assert not comparison.is_leak, comparison


@pytest.mark.parametrize("kind", [UNKNOWN_ID, REVOKED])
def test_an_unknown_token_takes_as_long_as_a_wrong_secret_s12(kind: str) -> None:
    world = AuthenticatedWorld()
    samples = token_samples(world, tokens_of(world))
    comparison = compared(samples[WRONG_SECRET], samples[kind], FAST_SAMPLES)
    assert not comparison.is_leak, comparison


def test_an_unknown_name_in_scram_takes_as_long_as_a_wrong_proof_s12() -> None:
    samples = scram_samples()
    comparison = compared(samples[KNOWN], samples[UNKNOWN], FAST_SAMPLES)
    assert not comparison.is_leak, comparison


class TestPlantedShortcuts:
    """The measurement finds them."""

    def test_no_hash_for_an_unknown_name(self) -> None:
        samples = password_samples(checks=ShortcutChecks)
        comparison = compared(samples[KNOWN], samples[UNKNOWN], PASSWORD_SAMPLES)
        assert comparison.is_leak and comparison.deviation > 0, comparison

    def test_a_cheaper_hash_for_an_unknown_name(self) -> None:
        samples = password_samples(CheaperForUnknownNames())
        comparison = compared(samples[KNOWN], samples[UNKNOWN], PASSWORD_SAMPLES)
        assert comparison.is_leak and comparison.deviation > 0, comparison

    def test_a_slower_digest_for_a_known_id(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = AuthenticatedWorld()
        refused = tokens_of(world)
        plant_a_stretched_digest_of_known_ids(world, monkeypatch)
        samples = token_samples(world, refused)
        comparison = compared(samples[WRONG_SECRET], samples[UNKNOWN_ID], FAST_SAMPLES)
        assert comparison.is_leak and comparison.deviation > 0, comparison

    def test_no_proof_for_an_unknown_name_in_scram(self) -> None:
        samples = scram_samples(ShortcutScram)
        comparison = compared(samples[KNOWN], samples[UNKNOWN], FAST_SAMPLES)
        assert comparison.is_leak and comparison.deviation > 0, comparison
