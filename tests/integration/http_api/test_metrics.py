"""`/metrics`: its formats, its sharing, and who gets it."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from raftlog.metrics.catalogue import ALL, GROUP_RECORDS
from raftlog.metrics.measure import Family
from raftlog.prometheus import metric_of
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Api

pytestmark = pytest.mark.integration

OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"


async def test_the_text_format_is_the_default(api: Api) -> None:
    await api.get("/v1/topics")
    answer = await api.get("/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = {family.name: family for family in parse_text(answer.body.decode())}
    assert found["raftlog_ready"].samples[0].value == 1
    assert found["raftlog_log_end_offset"].samples[0].labels == {"topic": "t", "partition": "0"}
    ((sample),) = [one for one in found["raftlog_http_requests"].samples if one.labels["route"] == "/v1/topics"]
    assert (sample.labels["method"], sample.labels["status"], sample.value) == ("GET", "200", 1)
    assert "process_cpu_seconds" in found and "python_info" in found


async def test_openmetrics_if_the_client_accepts_it(api: Api) -> None:
    answer = await api.get("/metrics", headers={"Accept": OPENMETRICS})
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert answer.body.endswith(b"# EOF\n")
    assert "raftlog_ready" in {family.name for family in parse_openmetrics(answer.body.decode())}


async def test_scrapes_that_arrive_together_cost_as_much_as_one(api: Api, broker: FakeBroker) -> None:
    answers = await asyncio.gather(*[api.get("/metrics") for _ in range(20)])
    assert {answer.status for answer in answers} == {200}
    assert broker.metrics.collections < 20


async def test_a_node_that_does_not_know_the_cluster_or_is_full_shows_its_metrics(api: Api, broker: FakeBroker) -> None:
    broker.knows_cluster = False
    api.context.requests_under_way = api.context.limits.max_concurrent_requests
    assert (await api.get("/metrics")).status == 200
    broker.knows_cluster = True
    (await api.get("/v1/topics")).problem("overloaded")
    api.context.requests_under_way = 0


async def test_an_unknown_path_is_one_series_whatever_it_is_called(api: Api) -> None:
    for number in range(3):
        await api.get(f"/no/such/path/{number}")
    text = (await api.get("/metrics")).body.decode()
    assert 'raftlog_http_requests_total{method="other",route="unmatched",status="404"} 3' in text


async def test_a_failed_collection_is_an_answer_and_the_next_one_works(api: Api, broker: FakeBroker) -> None:
    families, broker.metrics.families = broker.metrics.families, [Family.of(GROUP_RECORDS, 1), object()]  # type: ignore[list-item]
    (await api.get("/metrics")).problem("internal_error")
    broker.metrics.families = families
    assert (await api.get("/metrics")).status == 200


@pytest.mark.parametrize("measure", ALL, ids=lambda measure: measure.name)
def test_each_measure_keeps_its_name(measure: object) -> None:
    assert metric_of(Family(measure, [])).name == measure.name.removesuffix("_total")  # type: ignore[arg-type,attr-defined]


def test_labels_of_any_text_stay_what_they_are() -> None:
    from http_api.metrics.prometheus_text import render

    hostile = 'a"b\\c\nd{}'
    text, _ = render([Family(GROUP_RECORDS, [((hostile, "t", "0"), 3)])], "")
    found = {family.name: family for family in parse_text(text.decode())}
    assert found[GROUP_RECORDS.name].samples[0].labels["group"] == hostile
