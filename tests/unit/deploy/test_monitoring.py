"""Alert rules and dashboard: their names are those of the catalogue, and Prometheus's own tool takes and runs them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftlog.metrics.catalogue import ALL

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "deploy" / "monitoring"
ALERTS_FILE = MONITORING / "alerts.yaml"
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for group in msgspec.yaml.decode(ALERTS_FILE.read_bytes())["groups"] for rule in group["rules"]
}
DASHBOARD: dict[str, Any] = msgspec.json.decode((MONITORING / "grafana-dashboard.json").read_bytes())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
TARGETS = [(panel, target) for panel in PANELS for target in panel.get("targets", ())]
VARIABLES: list[dict[str, Any]] = DASHBOARD["templating"]["list"]

OF_ANY_PROCESS = {"process_max_fds": (), "process_open_fds": (), "process_resident_memory_bytes": ()}
"""Measures that Prometheus's client adds."""
LABELS: dict[str, tuple[str, ...]] = {measure.name: measure.labels for measure in ALL} | OF_ANY_PROCESS | {"up": ()}
HISTOGRAMS = {measure.name for measure in ALL if measure.kind == "histogram"}
COUNTERS = {measure.name for measure in ALL if measure.kind == "counter"}
OF_PROMETHEUS = {"job", "instance"}
"""Labels that a scrape adds to every series."""


def measure_of(series: str) -> str:
    """The measure to which a series belongs."""
    for ending in ("_bucket", "_sum", "_count"):
        if series.removesuffix(ending) in HISTOGRAMS:
            return series.removesuffix(ending)
    return series


def names_in(expression: str) -> list[str]:
    return re.findall(r"\b(?:raftlog|process|python)_[a-z_]+|\bup\b", expression)


def check_names(expression: str) -> None:
    """Every measure exists, and every label is one of theirs."""
    names = names_in(expression)
    assert names, expression
    assert {measure_of(name) for name in names} <= LABELS.keys(), expression
    known = OF_PROMETHEUS.union(*(LABELS[measure_of(name)] for name in names))
    known |= {"le"} if any(name.endswith("_bucket") for name in names) else set()
    used = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", expression))
    used |= {label for labels in re.findall(r"\bby \(([^)]*)\)", expression) for label in re.split(r",\s*", labels)}
    assert used <= known, expression


def check_counters(expression: str) -> None:
    """A counter is only of use as a rate, and only counters are rated."""
    rated = set(re.findall(r"\b(?:rate|increase)\(([a-z_]+)", expression))
    for name in names_in(expression):
        counts = name in COUNTERS or (measure_of(name) in HISTOGRAMS and measure_of(name) != name)
        assert (name in rated) is counts, f"{name} in {expression}"


# --- Names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_uses_what_exists_and_says_what_to_do(name: str) -> None:
    rule = ALERTS[name]
    check_names(rule["expr"])
    check_counters(rule["expr"])
    assert name.startswith("Raftlog")
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "action"}
    told = OF_PROMETHEUS.union(*(LABELS[measure_of(series)] for series in names_in(rule["expr"])))
    by = re.match(r"[^(]*by \(([^)]*)\)|histogram_quantile\([^(]*by \(([^)]*)\)", rule["expr"])
    kept = told if by is None else set(re.split(r",\s*", by[1] or by[2]))
    texts = " ".join(rule["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= kept, "a label that the expression drops is empty"


def test_the_commands_that_alerts_name_exist() -> None:
    from raftlog.cli.main import cli

    for rule in ALERTS.values():
        for words in re.findall(r"`raftlog ([a-z -]+[a-z])", rule["annotations"]["action"]):
            command: Any = cli
            for word in words.split():
                command = command.get_command(None, word)  # type: ignore[arg-type]
                assert command is not None, words
                if not hasattr(command, "get_command"):
                    break


@pytest.mark.parametrize(("panel", "target"), TARGETS, ids=lambda one: str(one.get("title", one.get("refId"))))
def test_a_panel_uses_what_exists(panel: dict[str, Any], target: dict[str, Any]) -> None:
    expression = target["expr"]
    check_names(expression)
    check_counters(expression)
    assert panel["title"] and panel["description"]
    known = OF_PROMETHEUS.union(*(LABELS[measure_of(name)] for name in names_in(expression)))
    assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known
    assert 'job="$job"' in expression, "another cluster's nodes would be shown, too"
    assert set(re.findall(r"\$(\w+)", expression)) <= {*(one["name"] for one in VARIABLES), "__rate_interval"}


def test_the_variables_of_the_dashboard_are_those_of_the_metrics() -> None:
    for variable in VARIABLES:
        if variable["type"] == "query":
            series, label = re.fullmatch(r"label_values\((\w+)(?:{.*})?, (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
            assert label in {*LABELS[series], *OF_PROMETHEUS}


def test_panels_have_places_of_their_own() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    cells: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & cells, panel["title"]
        cells |= own


# --- With promtool ----------------------------------------------------------------------------------------------------


@pytest.fixture
def promtool() -> str:
    """The path of Prometheus's tool."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed (Debian's package `prometheus` has it)")
    return found


def run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_the_alerts(promtool: str) -> None:
    run(promtool, "check", "rules", "--lint=all", "--lint-fatal", ALERTS_FILE)


def test_prometheus_accepts_the_expressions_of_the_dashboard(promtool: str, tmp_path: Path) -> None:
    def filled(expression: str) -> str:
        return re.sub(r"\$\w+", ".*", expression.replace("$__rate_interval", "1m"))

    rules = [{"record": f"panel:{number}", "expr": filled(one["expr"])} for number, (_, one) in enumerate(TARGETS)]
    file = tmp_path / "rules.yaml"
    file.write_bytes(msgspec.yaml.encode({"groups": [{"name": "panels", "rules": rules}]}))
    run(promtool, "check", "rules", file)


def test_prometheus_accepts_the_settings_of_the_manual(promtool: str, tmp_path: Path) -> None:
    (settings,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "metrics.md").read_text(), re.DOTALL)
    file = tmp_path / "prometheus.yaml"
    file.write_text(f"rule_files: [{ALERTS_FILE}]\n{settings}")
    run(promtool, "check", "config", "--syntax-only", file)
    assert 'job_name: "raftlog' in settings or "job_name: raftlog" in settings, "as the rules expect it"


NODE = 'job="raftlog",instance="n0"'
AT = "2h"
HEALTHY = {
    f"up{{{NODE}}}": "1x120",
    f"raftlog_ready{{{NODE}}}": "1x120",
    f"raftlog_offline_partitions{{{NODE}}}": "0x120",
    f"raftlog_under_min_isr_partitions{{{NODE}}}": "0x120",
    f"raftlog_under_replicated_partitions{{{NODE}}}": "0x120",
    f"raftlog_offline_replicas{{{NODE}}}": "0x120",
    f"raftlog_fenced_brokers{{{NODE}}}": "0x120",
    f'raftlog_replication_lag_seconds{{{NODE},follower="1"}}': "0.1x120",
    f"raftlog_isr_shrinks_total{{{NODE}}}": "2x120",
    f"raftlog_leader_elections_total{{{NODE}}}": "30x120",
    f"raftlog_leaders{{{NODE}}}": "10x120",
    f"raftlog_quorum_leader{{{NODE}}}": "2x120",
    f"raftlog_quorum_term{{{NODE}}}": "7x120",
    f'raftlog_quorum_lag_entries{{{NODE},node="1"}}': "3x120",
    f"raftlog_quorum_forgetful_nodes{{{NODE}}}": "0x120",
    f"raftlog_disk_short{{{NODE}}}": "0x120",
    f"raftlog_disk_free_bytes{{{NODE}}}": "1e12x120",
    f"raftlog_disk_reserved_bytes{{{NODE}}}": "1e10x120",
    f'raftlog_fsync_duration_seconds_bucket{{{NODE},le="0.005"}}': "0+600x120",
    f'raftlog_fsync_duration_seconds_bucket{{{NODE},le="0.5"}}': "0+600x120",
    f'raftlog_fsync_duration_seconds_bucket{{{NODE},le="+Inf"}}': "0+600x120",
    f'raftlog_thread_cpu_seconds_total{{{NODE},thread="loop"}}': "0+30x120",
    f"raftlog_event_loop_stalls_total{{{NODE}}}": "0+1x120",
    f"process_max_fds{{{NODE}}}": "65536x120",
    f"process_open_fds{{{NODE}}}": "300x120",
    f"raftlog_reserved_fds{{{NODE}}}": "1000x120",
    f'raftlog_tls_certificate_expiry_timestamp_seconds{{{NODE},certificate="node"}}': "1e8x120",
    f'raftlog_requests_total{{{NODE},kind="produce",outcome="success"}}': "0+6000x120",
    f'raftlog_requests_total{{{NODE},kind="produce",outcome="error"}}': "0+6x120",
    f'raftlog_http_requests_total{{{NODE},method="GET",route="/v1/topics",status="200"}}': "0+600x120",
    f'raftlog_http_requests_total{{{NODE},method="GET",route="/v1/topics",status="503"}}': "0+1x120",
    f'raftlog_group_lag_seconds{{{NODE},group="g",topic="t"}}': "2x120",
    f"raftlog_oldest_open_transaction_seconds{{{NODE}}}": "5x120",
    f'raftlog_failed_authentications_total{{{NODE},mechanism="token"}}': "0+1x120",
}
"""A cluster in which nothing is wrong: series → values, one a minute."""

FAULTS: dict[str, dict[str, str]] = {
    "RaftlogNodeDown": {"up": "0x120"},
    "RaftlogNodeNotReady": {"raftlog_ready": "0x120"},
    "RaftlogOfflinePartitions": {"raftlog_offline_partitions": "3x120"},
    "RaftlogUnderMinIsrPartitions": {"raftlog_under_min_isr_partitions": "3x120"},
    "RaftlogUnderReplicatedPartitions": {"raftlog_under_replicated_partitions": "3x120"},
    "RaftlogReplicasOutOfService": {"raftlog_offline_replicas": "1x120"},
    "RaftlogFencedBrokers": {"raftlog_fenced_brokers": "1x120"},
    "RaftlogFollowerLags": {"raftlog_replication_lag_seconds": "90x120"},
    "RaftlogIsrFlaps": {"raftlog_isr_shrinks_total": "0+2x120"},
    "RaftlogElectionsOfLeaders": {"raftlog_leader_elections_total": "0+5x120"},
    "RaftlogQuorumWithoutLeader": {"raftlog_quorum_leader": "-1x120"},
    "RaftlogQuorumElections": {"raftlog_quorum_term": "0+1x120"},
    "RaftlogQuorumNodeLags": {"raftlog_quorum_lag_entries": "5000x120"},
    "RaftlogVoterForgot": {"raftlog_quorum_forgetful_nodes": "1x120"},
    "RaftlogDiskShort": {"raftlog_disk_short": "1x120"},
    "RaftlogDiskFillsUp": {"raftlog_disk_free_bytes": "1.2e12-1e9x120"},
    "RaftlogSlowFsyncs": {'raftlog_fsync_duration_seconds_bucket{le="0.005"}': "0+60x120"},
    "RaftlogEventLoopBusy": {"raftlog_thread_cpu_seconds_total": "0+58x120"},
    "RaftlogEventLoopStalls": {"raftlog_event_loop_stalls_total": "0+120x120"},
    "RaftlogFewFileDescriptors": {"process_open_fds": "65400x120"},
    "RaftlogCertificateExpiresSoon": {"raftlog_tls_certificate_expiry_timestamp_seconds": "500000x120"},
    "RaftlogCertificateExpired": {"raftlog_tls_certificate_expiry_timestamp_seconds": "60x120"},
    "RaftlogRequestsFail": {'raftlog_requests_total{outcome="error"}': "0+600x120"},
    "RaftlogHttpServerErrors": {'raftlog_http_requests_total{status="503"}': "0+120x120"},
    "RaftlogGroupFallsBehind": {"raftlog_group_lag_seconds": "900x120"},
    "RaftlogTransactionStaysOpen": {"raftlog_oldest_open_transaction_seconds": "1000x120"},
    "RaftlogFailedAuthentications": {"raftlog_failed_authentications_total": "0+120x120"},
}
"""Alert → the change that must make it fire, and no other: the beginning of a series, or one with a label → values."""


def changed(changes: Mapping[str, str]) -> dict[str, str]:
    series = dict(HEALTHY)
    for what, values in changes.items():
        name, _, label = what.rstrip("}").partition("{")
        (found,) = [one for one in series if one.startswith(f"{name}{{") and label in one]
        series[found] = values
    return series


def case(series: Mapping[str, str], firing: Sequence[str]) -> dict[str, Any]:
    samples = [
        {"labels": f'{{alertname="{name}", severity="{ALERTS[name]["labels"]["severity"]}"}}', "value": 1}
        for name in firing
    ]
    expected = {"eval_time": AT, "exp_samples": samples}
    expression = 'count by (alertname, severity) (ALERTS{alertstate="firing"})'
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": expression, **expected}],
    }


def cases() -> Iterator[dict[str, Any]]:
    yield case(HEALTHY, ())
    for name, changes in FAULTS.items():
        yield case(changed(changes), [name])


def test_each_alert_fires_for_its_fault_alone_and_none_in_a_healthy_cluster(promtool: str, tmp_path: Path) -> None:
    assert FAULTS.keys() == ALERTS.keys()
    file = tmp_path / "cases.yaml"
    file.write_bytes(
        msgspec.yaml.encode({"rule_files": [str(ALERTS_FILE)], "evaluation_interval": "1m", "tests": list(cases())})
    )
    run(promtool, "test", "rules", file)
