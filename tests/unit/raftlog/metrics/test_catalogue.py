"""The names of metrics follow Prometheus's conventions (https://prometheus.io/docs/practices/naming/)."""

from __future__ import annotations

import re

import pytest

from raftlog.metrics.catalogue import ALL
from raftlog.metrics.client_catalogue import ALL_OF_CLIENTS
from raftlog.metrics.measure import Measure

NAME = re.compile(r"raftlog_[a-z]+(_[a-z]+)*")
NOT_BASE_UNITS = re.compile(r"_(ms|milliseconds|minutes|hours|kb|mb|kilobytes|percent)(_|$)")
EVERY = (*ALL, *ALL_OF_CLIENTS)
RESERVED_ENDINGS = ("_count", "_sum", "_bucket", "_created")


def test_names_are_unique() -> None:
    assert len({measure.name for measure in EVERY}) == len(EVERY) > 60


@pytest.mark.parametrize("measure", EVERY, ids=lambda measure: measure.name)
def test_names_follow_the_conventions(measure: Measure) -> None:
    assert NAME.fullmatch(measure.name)
    assert not NOT_BASE_UNITS.search(measure.name)
    assert not measure.name.endswith(RESERVED_ENDINGS)
    assert measure.name.endswith("_total") is (measure.kind == "counter")
    assert all(re.fullmatch(r"[a-z_]+", label) and label != "le" for label in measure.labels)


@pytest.mark.parametrize("measure", EVERY, ids=lambda measure: measure.name)
def test_help_is_a_sentence(measure: Measure) -> None:
    assert measure.help[0].isupper() or measure.help[0].isdigit()
    assert measure.help.endswith(".")
    assert "\n" not in measure.help
