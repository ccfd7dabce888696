"""The text of metrics: what our own lines say is what the library would have written."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from http_api.metrics.prometheus_text import Families, render, sample_lines
from raftlog.metrics.catalogue import ALL, GROUP_RECORDS, SYNC_SECONDS, TOPIC_BYTES_IN
from raftlog.metrics.histogram import Histogram
from raftlog.metrics.measure import Family

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PARSERS = {"": parse_text, OPENMETRICS: parse_openmetrics}

NUMBERS = st.integers(-(2**63), 2**63) | st.floats()
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=8)


def found(text: bytes, accept: str) -> dict[str, Any]:
    """Name → type, help and samples of the node's own families."""
    return {
        family.name: (
            family.type,
            family.documentation,
            [(one.name, sorted(one.labels.items()), repr(float(one.value))) for one in family.samples],
        )
        for family in PARSERS[accept](text.decode())
        if family.name.startswith("raftlog_")
    }


@pytest.mark.parametrize("accept", PARSERS, ids=["text", "OpenMetrics"])
@given(
    st.lists(st.tuples(st.tuples(NAMES, NAMES, NAMES), NUMBERS), unique_by=lambda one: one[0], max_size=5),
    st.dictionaries(NAMES, st.integers(0, 2**63), max_size=5),
)
def test_the_lines_are_those_of_the_library(
    accept: str, gauges: list[tuple[tuple[str, str, str], float]], counters: dict[str, int]
) -> None:
    histogram = Histogram()
    histogram.observe(0.3)
    families = [
        Family(GROUP_RECORDS, list(gauges)),
        Family(TOPIC_BYTES_IN, [((topic,), count) for topic, count in counters.items()]),
        Family.of(SYNC_SECONDS, histogram.state()),
    ]
    text, content_type = render(families, accept)
    encode, expected_type = choose_encoder(accept)
    assert content_type == expected_type
    assert found(text, accept) == found(encode(Families(families)), accept)
    assert text.count(b"# EOF\n") == (accept == OPENMETRICS) and text.endswith(b"# EOF\n") is (accept == OPENMETRICS)


def test_numbers_that_are_no_numbers_have_prometheus_names() -> None:
    family = Family(TOPIC_BYTES_IN, [(("a",), math.inf), (("b",), -math.inf), (("c",), math.nan), (("d",), 2.5)])
    assert sample_lines(family) == "".join(
        f'{TOPIC_BYTES_IN.name}{{topic="{topic}"}} {value}\n'
        for topic, value in (("a", "+Inf"), ("b", "-Inf"), ("c", "NaN"), ("d", "2.5"))
    )


def test_a_measure_without_samples_is_announced() -> None:
    text, _ = render([Family(measure) for measure in ALL], "")
    assert all(f"# TYPE {measure.name} {measure.kind}\n".encode() in text for measure in ALL)
