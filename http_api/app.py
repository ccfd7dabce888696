"""The native HTTP API: the table of routes, the application and its listening server.

`openapi.json` describes it; a test compares the two in both directions. The broker stands behind `BrokerService`.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable

from aiohttp import web

from http_api.routes import (
    cluster,
    deletions,
    fetch,
    group_offsets,
    groups,
    moves,
    offsets,
    produce,
    scrubs,
    topics,
    transactions,
    voters,
)
from http_api.service.service import BrokerService
from http_api.web.context import CONTEXT, ApiContext, wall_ms
from http_api.web.hosts import HostPolicy
from http_api.web.limits import Limits
from http_api.web.middleware import Handler, add_headers, answer_request
from http_api.web.server import ApiRunner, ApiSite, expect
from raftlog.records.batch import load_arrow

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("GET", "/v1/topics", topics.list_topics),
    ("POST", "/v1/topics", topics.create_topic),
    ("GET", "/v1/topics/{topic}", topics.describe_topic),
    ("PATCH", "/v1/topics/{topic}", topics.alter_topic),
    ("DELETE", "/v1/topics/{topic}", topics.delete_topic),
    ("POST", "/v1/topics/{topic}/partitions", topics.add_partitions),
    ("POST", "/v1/topics/{topic}/delete-records", deletions.delete_records),
    ("POST", "/v1/topics/{topic}/records", produce.produce_records),
    ("GET", "/v1/topics/{topic}/partitions/{partition}/records", fetch.read_records),
    ("GET", "/v1/topics/{topic}/partitions/{partition}/offsets", offsets.read_offsets),
    ("POST", "/v1/produce", produce.produce_batches),
    ("POST", "/v1/fetch", fetch.fetch_batches),
    ("POST", "/v1/offsets", offsets.find_offsets),
    ("POST", "/v1/producers", offsets.allocate_producer),
    ("GET", "/v1/groups", groups.list_groups),
    ("POST", "/v1/groups/{group}/offsets", group_offsets.commit_offsets),
    ("GET", "/v1/groups/{group}/offsets", group_offsets.read_offsets),
    ("POST", "/v1/groups/{group}/members/{member}/heartbeat", groups.heartbeat),
    ("GET", "/v1/groups/{group}", groups.describe_group),
    ("DELETE", "/v1/groups/{group}", groups.delete_group),
    ("POST", "/v1/groups/{group}/members", groups.join_group),
    ("DELETE", "/v1/groups/{group}/members/{member}", groups.leave_group),
    ("POST", "/v1/groups/{group}/seek", group_offsets.seek),
    ("GET", "/v1/transactions", transactions.list_transactions),
    ("POST", "/v1/transactions/initialize", transactions.initialize),
    ("POST", "/v1/transactions/blocks", transactions.open_block),
    ("DELETE", "/v1/transactions/blocks/{name}", transactions.retire_block),
    ("POST", "/v1/transactions/commit", transactions.commit),
    ("POST", "/v1/transactions/abort", transactions.abort),
    ("GET", "/v1/transactions/{transactional_id}", transactions.describe_transaction),
    ("GET", "/v1/positions", transactions.list_positions),
    ("GET", "/v1/positions/{name}", transactions.describe_position),
    ("DELETE", "/v1/positions/{name}", transactions.remove_position),
    ("GET", "/v1/cluster", cluster.describe_cluster),
    ("GET", "/v1/cluster/reassignments", moves.list_reassignments),
    ("POST", "/v1/cluster/reassignments", moves.alter_reassignments),
    ("POST", "/v1/cluster/plans", moves.plan_moves),
    ("POST", "/v1/cluster/elections", moves.elect_leaders),
    ("DELETE", "/v1/cluster/brokers/{broker}", moves.unregister_broker),
    ("GET", "/v1/replicas", moves.list_replicas),
    ("GET", "/v1/scrub", scrubs.describe_scrub),
    ("POST", "/v1/scrub", scrubs.start_scrub),
    ("GET", "/v1/quorum", cluster.describe_quorum),
    ("POST", "/v1/cluster/feature-level", cluster.finalize_feature_level),
    ("POST", "/v1/quorum/voters", voters.change_voters),
    ("GET", "/v1/health", cluster.health),
    ("HEAD", "/v1/health", cluster.health),
    ("GET", "/v1/ready", cluster.ready),
    ("HEAD", "/v1/ready", cluster.ready),
    ("GET", "/openapi.json", cluster.openapi),
)


def build_app(
    service: BrokerService,
    *,
    allowed_hosts: Iterable[str] = (),
    allowed_origins: Iterable[str] = (),
    limits: Limits | None = None,
    clock_ms: Callable[[], int] = wall_ms,
) -> web.Application:
    """Return the application in front of a broker.

    `allowed_hosts` are the names that `Host` may carry besides loopback's: where the node listens, what it advertises,
    and what the operator adds. `allowed_origins` (`https://name[:port]`) are foreign pages that may use the API from a
    browser. Raises `ValueError` for text that is neither.
    """
    limits = limits or Limits()
    context = ApiContext(service, HostPolicy.of(allowed_hosts, allowed_origins), limits, clock_ms)
    # Bodies are read and bounded by `http_api/web/bodies.py`; aiohttp's own bound is for calls that are not used here.
    app = web.Application(middlewares=[answer_request], client_max_size=limits.max_body_bytes)
    app[CONTEXT] = context
    for method, path, handler in ROUTES:
        app.router.add_route(method, path, handler, expect_handler=expect)
    app.on_response_prepare.append(add_headers)
    app.on_startup.append(_load)
    app.on_shutdown.append(_stop_taking_requests)
    app.on_cleanup.append(_close)
    return app


async def start_api(
    app: web.Application,
    host: str,
    port: int,
    *,
    ssl_context: ssl.SSLContext | None = None,
    most_connections: Callable[[], int | None] = lambda: None,
    on_short: Callable[[OSError], None] = lambda error: None,
) -> tuple[web.AppRunner, int]:
    """Listen; port 0 picks a free one. Returns the runner to `cleanup()` and the port. `most_connections`: the number
    allowed now, where that is less than the limits say; `on_short` is called with the error of each `accept` that found
    no descriptor or memory, after which accepting pauses.

    Raises `OSError` if the address cannot be bound.
    """
    runner = ApiRunner(app, most_connections)
    await runner.setup()
    try:
        site = ApiSite(runner, host, port, ssl_context=ssl_context, on_short=on_short)
        await site.start()
    except BaseException:
        await runner.cleanup()
        raise
    bound: int = runner.addresses[0][1]
    return runner, bound


async def _load(app: web.Application) -> None:
    """Import pyarrow before anything listens: imported at the first large body, it would block the event loop."""
    load_arrow()


async def _stop_taking_requests(app: web.Application) -> None:
    app[CONTEXT].stop_taking_requests()


async def _close(app: web.Application) -> None:
    await app[CONTEXT].close()
