"""`docs/metrics.md`, made from the catalogue."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from .catalogue import ALL
from .client_catalogue import ALL_OF_CLIENTS
from .measure import Measure

HEAD = """# Metrics

Every node answers `GET /metrics` at its HTTP API, in Prometheus's text format, or as OpenMetrics if the request
accepts it. The tables are made from the code by `make metrics-page`; a test keeps them current.

## Scraping

```yaml
scrape_configs:
  - job_name: raftlog
    scrape_interval: 15s
    scheme: https                       # http if security is off
    tls_config: {ca_file: /etc/prometheus/raftlog-authority.pem}
    authorization: {credentials_file: /etc/prometheus/raftlog.token}
    static_configs:
      - targets: ["10.0.0.1:9640", "10.0.0.2:9640", "10.0.0.3:9640"]
```

Nodes are scraped by names that they know (`advertised`, `allowed_hosts`), like every request. With security on, a
scraper needs a credential whose user may describe the cluster, also from the node's own machine:
names of topics and groups are in the answer. A load balancer that only needs to know that the node is well uses
`/v1/ready`.

```sh
raftlog user create prometheus --no-password
(umask 077; raftlog token create --user prometheus --description 'scrapes' > raftlog.token)
raftlog acl create --allow-principal User:prometheus --cluster --operation describe
```

## Alerts and a dashboard

The folder `deploy/monitoring/` of the repository has what most clusters need. Both take the scrape job for the cluster,
so give each cluster a job whose name begins with `raftlog`.

* `alerts.yaml`: alert rules, for `rule_files` of `prometheus.yml`. Each has a severity (`critical`: requests fail or
  data is at risk now; `warning`: it will come to that) and says what to look at first.
* `grafana-dashboard.json`: a dashboard, for Grafana's *Import*: the cluster, throughput, requests, replication, disks,
  groups, the quorum, the processes.

Tests check both with `promtool` and against the tables below.

## Reading the numbers

* **Counts begin with the process.** `rate()` and `increase()` handle restarts. A count of a topic goes on when a
  replica leaves the node.
* **The cluster's state is that of the node's view.** All nodes that are up to date show the same number of offline or
  under-replicated partitions: use `max`, not `sum`. Lags of followers and groups are known to the leader of a
  partition, and shown by it alone: use `sum` or `max`.
* **The number of series is bounded.** One metric has at most `metrics.max_series` of them on a node. If a node has
  more partitions, they are joined by topic, with `(all)` as their label `partition`; offsets and bytes are then sums,
  lags of followers the greatest. `metrics.partitions = "topic"` does so from the start. Topics and groups beyond the
  bound are joined as `(other)`. `raftlog_metrics_joined_series` counts what was joined.
* **Scraping is cheap and does not hold up requests**: numbers are read in slices of some milliseconds, and scrapes
  that arrive together share one answer.

## Costs

`python benchmarks/metrics.py scrape --count 1000 10000 --nodes 1 --scrapes 15`, on two cores that were half busy with
other work, all partitions led by one node and with a committed offset of a group:

| partitions | series | size | half within | all within | stalls of the loop | of a core, scraped every 15 s |
|---|---|---|---|---|---|---|
| 1,000 | 6,660 | 0.4 MB | 30 ms | 64 ms | 0 | 0.2 % |
| 10,000 | 60,714 | 3.9 MB | 158 ms | 253 ms | 0 | 1.2 % |

`python benchmarks/metrics.py counting` compares the throughput of a cluster that is scraped with that of one whose
nodes count nothing.
"""

SECTIONS = (
    ("Node", "raftlog_build"),
    ("Requests", "raftlog_requests_total"),
    ("Topics and partitions", "raftlog_topic_appended_bytes_total"),
    ("Writes of the log", "raftlog_fsync_duration_seconds"),
    ("Replication", "raftlog_replication_lag_records"),
    ("Consumer groups and transactions", "raftlog_groups"),
    ("The metadata quorum", "raftlog_quorum_term"),
    ("The answer itself", "raftlog_metrics_joined_series"),
)
"""The title of each section, and its first measure."""

OF_CLIENTS = (
    ("Producers", "raftlog_client_buffered_bytes"),
    ("Consumers", "raftlog_client_prefetched_bytes"),
)
"""The same of the client library."""

CLIENTS = """## The client library

Each `Producer`, `Consumer` and `GroupConsumer`, asyncio or blocking, has a property `metrics` with its numbers now, in
plain objects: families with name, kind, labels and values. Counting costs a few additions for each batch. With
[prometheus_client](https://prometheus.github.io/client_python/), a program exports them beside its own:

```python
from raftlog.client.prometheus import PrometheusCollector

collector = PrometheusCollector()        # registers itself with prometheus_client's REGISTRY
producer = raftlog.Producer("127.0.0.1:9640")
collector.add(producer, "orders")        # the label `client`; on the event loop of an asyncio client
```

A client is shown until it is removed (`remove`) or nothing refers to it. Scrapes may come on any thread.
"""

TAIL = """## Of any process

Prometheus's client adds `process_cpu_seconds_total`, `process_resident_memory_bytes`, `process_virtual_memory_bytes`,
`process_start_time_seconds`, `process_open_fds`, `process_max_fds`, `python_info` and `python_gc_...`.
"""


def metrics_page() -> str:
    """Return the page."""
    own = _sections(ALL, SECTIONS, "##")
    of_clients = _sections(ALL_OF_CLIENTS, OF_CLIENTS, "###")
    return "\n".join([HEAD, *own, TAIL, CLIENTS, *of_clients]).rstrip("\n") + "\n"


def _sections(measures: Sequence[Measure], sections: Sequence[tuple[str, str]], level: str) -> Iterator[str]:
    titles = {first: title for title, first in sections}
    for measure, following in zip(measures, (*measures[1:], None), strict=True):
        if measure.name in titles:
            yield f"{level} {titles[measure.name]}\n"
            yield "| metric | kind | labels | |\n|---|---|---|---|"
        yield _row(measure) + ("\n" if following is None or following.name in titles else "")


def _row(measure: Measure) -> str:
    labels = ", ".join(f"`{label}`" for label in measure.labels)
    return f"| `{measure.name}` | {measure.kind} | {labels} | {measure.help} |"


if __name__ == "__main__":
    sys.stdout.write(metrics_page())
