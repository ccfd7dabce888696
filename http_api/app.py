"""The native HTTP API: the table of routes, the application and its listening server.

`openapi.json` describes it; a test compares the two in both directions. The broker stands behind `BrokerService`.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Collection, Iterable

from aiohttp import web

from http_api.console import files as console
from http_api.console.files import CONSOLE, console_files
from http_api.live import stream
from http_api.live.feed import FEED, Feed
from http_api.rest_proxy.document import rest_proxy_document
from http_api.rest_proxy.surface import refuse_as_rest_proxy
from http_api.rest_proxy.v2 import consumer_reads as v2_reads
from http_api.rest_proxy.v2 import consumers as v2_consumers
from http_api.rest_proxy.v2 import produce as v2_produce
from http_api.rest_proxy.v2 import records as v2_records
from http_api.rest_proxy.v2 import topics as v2_topics
from http_api.rest_proxy.v3 import acls as v3_acls
from http_api.rest_proxy.v3 import cluster as v3_cluster
from http_api.rest_proxy.v3 import configs as v3_configs
from http_api.rest_proxy.v3 import groups as v3_groups
from http_api.rest_proxy.v3 import partitions as v3_partitions
from http_api.rest_proxy.v3 import records as v3_records
from http_api.rest_proxy.v3 import topics as v3_topics
from http_api.rest_proxy.v3.resources import PAGE_QUERY
from http_api.routes import (
    acls,
    audit,
    cluster,
    deletions,
    explain,
    fetch,
    group_offsets,
    groups,
    identity,
    leases,
    metrics,
    moves,
    offsets,
    partitions,
    plots,
    produce,
    scrubs,
    timeline,
    topics,
    transactions,
    users,
)
from http_api.service.access import Usage
from http_api.service.service import BrokerService
from http_api.streams import asked as stream_query
from http_api.streams.pages import SharedPages
from http_api.streams.stream import PAGES, stream_records
from http_api.viewer import files as viewer
from http_api.viewer.files import VIEWER, viewer_files
from http_api.web.authentication import caller_of
from http_api.web.call import CALL, Call
from http_api.web.context import CONTEXT, ApiContext, context_of, wall_ms
from http_api.web.guards import (
    Guard,
    by_content,
    by_entry,
    for_every_caller,
    on_any_topic,
    on_cluster,
    on_group,
    on_name,
    on_own_user,
    on_topic,
)
from http_api.web.hosts import HostPolicy
from http_api.web.limits import Limits
from http_api.web.middleware import METRICS_PATH, Handler, add_headers, answer_request, request_id_of
from http_api.web.query import Query
from http_api.web.quotas import spend
from http_api.web.server import ApiRunner, ApiSite, plain_refusal
from http_api.web.topics import know_topic
from raftlog.records.batch import load_arrow
from raftlog.security.acls import Operation
from raftlog.system.tls_door import ContextSource, OnRefused, TlsDoor
from raftlog.wire import TRANSACTIONS_PATH

Route = tuple[str, str, Handler]
"""Method, path, handler."""


UNDECIDED = (
    produce.produce_records,
    produce.produce_batches,
    v2_produce.produce_records,
    v2_produce.produce_to_partition,
    v3_records.produce_records,
    v3_records.produce_batch,
    fetch.fetch_batches,
    offsets.find_offsets,
    leases.take_lease,
    deletions.delete_records,
    moves.plan_moves,
    scrubs.start_scrub,
    acls.check_acl,
)
"""Requests other than `GET` about which the quorum need not decide, or which count its decisions themselves."""


def route(
    method: str,
    path: str,
    answer: Callable[[Call], Awaitable[web.StreamResponse]],
    guard: Guard,
    parameters: Collection[str] = (),
    *,
    repeatable: Collection[str] = (),
) -> Route:
    """Return a route whose query has only these parameters, of which the `repeatable` ones may be repeated."""
    action = f"{method} {path}"
    decided = method not in ("GET", "HEAD") and answer not in UNDECIDED

    async def handler(request: web.Request) -> web.StreamResponse:
        query = Query(request, parameters, repeatable=repeatable)
        context = context_of(request)
        call = Call(
            request,
            context,
            query,
            caller_of(request),
            action,
            request_id_of(request),
            guard,
            context.service.access.rules_version,
        )
        request[CALL] = call
        # The decision comes first: other refusals tell something about what the caller may not use.
        guard(call)
        query.check()
        if decided:
            spend(call.caller, call.service.access, {Usage.METADATA_COMMANDS: 1})
        await know_topic(call)
        call.check_again()
        return await answer(call)

    return method, path, handler


ROUTES: tuple[Route, ...] = (
    route("GET", "/v1/topics", topics.list_topics, by_entry, topics.QUERY),
    route("POST", "/v1/topics", topics.create_topic, by_content),
    route("GET", "/v1/topics/{topic}", topics.describe_topic, on_topic(Operation.DESCRIBE), topics.DESCRIBE_QUERY),
    route("PATCH", "/v1/topics/{topic}", topics.alter_topic, on_topic(Operation.ALTER_CONFIGS)),
    route("DELETE", "/v1/topics/{topic}", topics.delete_topic, on_topic(Operation.DELETE), topics.DELETE_QUERY),
    route("POST", "/v1/topics/{topic}/partitions", topics.add_partitions, on_topic(Operation.ALTER)),
    route(
        "POST",
        "/v1/topics/{topic}/delete-records",
        deletions.delete_records,
        on_topic(Operation.DELETE),
        deletions.QUERY,
    ),
    route(
        "POST",
        "/v1/topics/{topic}/records",
        produce.produce_records,
        on_topic(Operation.WRITE),
        produce.QUERY,
        repeatable=produce.REPEATABLE,
    ),
    route(
        "GET",
        "/v1/topics/{topic}/partitions/{partition}/records",
        fetch.read_records,
        on_topic(Operation.READ),
        fetch.QUERY,
    ),
    route(
        "GET",
        "/v1/topics/{topic}/partitions/{partition}/offsets",
        offsets.read_offsets,
        on_topic(Operation.DESCRIBE),
        offsets.QUERY,
    ),
    route(
        "GET",
        "/v1/topics/{topic}/offsets",
        offsets.read_topic_offsets,
        on_topic(Operation.DESCRIBE),
        offsets.TOPIC_QUERY,
    ),
    route("POST", "/v1/produce", produce.produce_batches, on_any_topic(Operation.WRITE)),
    route("POST", "/v1/fetch", fetch.fetch_batches, on_any_topic(Operation.READ)),
    route(
        "GET",
        "/v1/stream",
        stream_records,
        on_any_topic(Operation.READ),
        stream_query.QUERY,
        repeatable=stream_query.REPEATABLE,
    ),
    route("POST", "/v1/offsets", offsets.find_offsets, on_any_topic(Operation.DESCRIBE)),
    route("POST", "/v1/producers", offsets.allocate_producer, on_cluster(Operation.IDEMPOTENT_WRITE)),
    route("GET", "/v1/groups", groups.list_groups, by_entry, groups.LIST_QUERY),
    route("POST", "/v1/groups/{group}/offsets", group_offsets.commit_offsets, on_group(Operation.READ)),
    route(
        "GET",
        "/v1/groups/{group}/offsets",
        group_offsets.read_offsets,
        on_group(Operation.DESCRIBE),
        group_offsets.QUERY,
    ),
    route("POST", "/v1/groups/{group}/members/{member}/heartbeat", groups.heartbeat, on_group(Operation.READ)),
    route("GET", "/v1/groups/{group}", groups.describe_group, on_group(Operation.DESCRIBE)),
    route("DELETE", "/v1/groups/{group}", groups.delete_group, on_group(Operation.DELETE)),
    route("POST", "/v1/groups/{group}/members", groups.join_group, on_group(Operation.READ)),
    route(
        "DELETE", "/v1/groups/{group}/members/{member}", groups.leave_group, on_group(Operation.READ), ("incarnation",)
    ),
    route("POST", "/v1/groups/{group}/offsets/delete", group_offsets.delete_offsets, on_group(Operation.DELETE)),
    route("POST", "/v1/groups/{group}/leases", leases.take_lease, on_group(Operation.READ)),
    route("GET", "/v1/groups/{group}/leases", leases.list_leases, on_group(Operation.DESCRIBE)),
    route("POST", "/v1/groups/{group}/leases/{lease}/acknowledge", leases.acknowledge_lease, on_group(Operation.READ)),
    route("POST", "/v1/groups/{group}/leases/{lease}/renew", leases.renew_lease, on_group(Operation.READ)),
    route("DELETE", "/v1/groups/{group}/leases/{lease}", leases.release_lease, on_group(Operation.READ)),
    route("POST", "/v1/groups/{group}/seek", group_offsets.seek, on_group(Operation.READ)),
    route("GET", "/v1/transactions", transactions.list_transactions, by_entry),
    route("POST", "/v1/transactions/initialize", transactions.initialize, by_content),
    route("POST", "/v1/transactions/blocks", transactions.open_block, by_content),
    route("DELETE", "/v1/transactions/blocks/{name}", transactions.retire_block, on_name(Operation.WRITE)),
    route("POST", "/v1/transactions/commit", transactions.commit, by_content),
    route("POST", "/v1/transactions/abort", transactions.abort, by_content),
    route(
        "GET",
        "/v1/transactions/{transactional_id}",
        transactions.describe_transaction,
        on_name(Operation.DESCRIBE, "transactional_id"),
    ),
    route("GET", "/v1/positions", transactions.list_positions, by_entry, ("prefix",)),
    route("GET", "/v1/positions/{name}", transactions.describe_position, on_name(Operation.DESCRIBE)),
    route("DELETE", "/v1/positions/{name}", transactions.remove_position, on_name(Operation.WRITE), ("value",)),
    route("GET", "/v1/cluster", cluster.describe_cluster, for_every_caller),
    route("GET", "/v1/cluster/partitions", partitions.summarize_partitions, by_entry),
    route("GET", "/v1/events", stream.stream_events, for_every_caller, stream.QUERY, repeatable=stream.REPEATABLE),
    route("GET", "/v1/cluster/reassignments", moves.list_reassignments, on_cluster(Operation.DESCRIBE)),
    route("POST", "/v1/cluster/reassignments", moves.alter_reassignments, on_cluster(Operation.ALTER)),
    route("POST", "/v1/cluster/plans", moves.plan_moves, on_cluster(Operation.DESCRIBE)),
    route("POST", "/v1/cluster/elections", moves.elect_leaders, on_cluster(Operation.ALTER)),
    route("DELETE", "/v1/cluster/brokers/{broker}", moves.unregister_broker, on_cluster(Operation.ALTER)),
    route("GET", "/v1/cluster/brokers/{broker}/roll-check", cluster.roll_check, on_cluster(Operation.DESCRIBE)),
    route("GET", "/v1/replicas", moves.list_replicas, on_cluster(Operation.DESCRIBE)),
    route("GET", "/v1/scrub", scrubs.describe_scrub, on_cluster(Operation.DESCRIBE)),
    route("POST", "/v1/scrub", scrubs.start_scrub, on_cluster(Operation.ALTER)),
    route("GET", "/v1/quorum", cluster.describe_quorum, on_cluster(Operation.DESCRIBE)),
    route("POST", "/v1/cluster/feature-level", cluster.finalize_feature_level, on_cluster(Operation.ALTER)),
    route("POST", "/v1/quorum/voters", cluster.change_voters, on_cluster(Operation.ALTER)),
    route("GET", "/v1/health", cluster.health, for_every_caller),
    route("HEAD", "/v1/health", cluster.health, for_every_caller),
    route("GET", "/v1/live", cluster.live, for_every_caller),
    route("HEAD", "/v1/live", cluster.live, for_every_caller),
    route("GET", "/v1/ready", cluster.ready, for_every_caller),
    route("HEAD", "/v1/ready", cluster.ready, for_every_caller),
    route("GET", "/v1/identity", identity.describe_caller, for_every_caller),
    route(
        "GET",
        "/v1/explain/topics/{topic}/partitions/{partition}",
        explain.explain_partition,
        on_topic(Operation.DESCRIBE),
        explain.PARTITION_QUERY,
    ),
    route(
        "GET", "/v1/explain/groups/{group}", explain.explain_group, on_group(Operation.DESCRIBE), explain.GROUP_QUERY
    ),
    route(
        "GET",
        "/v1/explain/transactions/{transactional_id}",
        explain.explain_transaction,
        on_name(Operation.DESCRIBE, "transactional_id"),
    ),
    route("GET", "/v1/plots/topics/{topic}", plots.plot_topic, on_topic(Operation.DESCRIBE), plots.QUERY),
    route("GET", "/v1/plots/groups/{group}", plots.plot_group, on_group(Operation.DESCRIBE), plots.QUERY),
    route("GET", "/v1/plots/nodes", plots.plot_nodes, on_cluster(Operation.DESCRIBE), plots.QUERY),
    route("GET", "/v1/timeline", timeline.list_changes, by_entry, timeline.QUERY),
    route("GET", "/v1/audit", audit.list_audit_lines, on_cluster(Operation.ALTER), audit.QUERY),
    route("GET", "/v1/users", users.list_users, on_cluster(Operation.DESCRIBE)),
    route("POST", "/v1/users", users.create_user, on_cluster(Operation.ALTER)),
    route("GET", "/v1/users/{user}", users.describe_user, on_own_user(Operation.DESCRIBE)),
    route("PATCH", "/v1/users/{user}", users.alter_user, on_own_user(Operation.ALTER)),
    route("DELETE", "/v1/users/{user}", users.remove_user, on_cluster(Operation.ALTER)),
    route("GET", "/v1/users/{user}/tokens", users.list_tokens, on_own_user(Operation.DESCRIBE)),
    route("POST", "/v1/users/{user}/tokens", users.create_token, on_own_user(Operation.ALTER)),
    route("DELETE", "/v1/users/{user}/tokens/{token}", users.revoke_token, on_own_user(Operation.ALTER)),
    route("GET", "/v1/acls", acls.list_acls, on_cluster(Operation.DESCRIBE)),
    route("POST", "/v1/acls", acls.create_acls, on_cluster(Operation.ALTER)),
    route("POST", "/v1/acls/delete", acls.delete_acls, on_cluster(Operation.ALTER)),
    route("POST", "/v1/acls/check", acls.check_acl, on_cluster(Operation.DESCRIBE)),
    route("GET", "/v1/quotas", acls.list_quotas, on_cluster(Operation.DESCRIBE)),
    route("PUT", "/v1/quotas/{entity}", acls.set_quota, on_cluster(Operation.ALTER)),
    route("DELETE", "/v1/quotas/{entity}", acls.remove_quota, on_cluster(Operation.ALTER)),
    route("GET", METRICS_PATH, metrics.show_metrics, on_cluster(Operation.DESCRIBE)),
    route("GET", "/openapi.json", cluster.openapi, for_every_caller),
    route("GET", "/", cluster.first_page, for_every_caller),
)

_INSTANCE = "/consumers/{group}/instances/{instance}"
_READ_GROUP = on_group(Operation.READ)

V2_ROUTES: tuple[Route, ...] = (
    route("GET", "/openapi/rest-proxy.json", rest_proxy_document, for_every_caller),
    route("GET", "/brokers", v2_topics.list_brokers, for_every_caller),
    route("GET", "/topics", v2_topics.list_topics, by_entry),
    route("GET", "/topics/{topic}", v2_topics.describe_topic, on_topic(Operation.DESCRIBE)),
    route("POST", "/topics/{topic}", v2_produce.produce_records, on_topic(Operation.WRITE)),
    route("GET", "/topics/{topic}/partitions", v2_topics.list_partitions, on_topic(Operation.DESCRIBE)),
    route("GET", "/topics/{topic}/partitions/{partition}", v2_topics.describe_partition, on_topic(Operation.DESCRIBE)),
    route("POST", "/topics/{topic}/partitions/{partition}", v2_produce.produce_to_partition, on_topic(Operation.WRITE)),
    route(
        "GET", "/topics/{topic}/partitions/{partition}/offsets", v2_topics.read_offsets, on_topic(Operation.DESCRIBE)
    ),
    route(
        "GET",
        "/topics/{topic}/partitions/{partition}/records",
        v2_records.read_records,
        on_topic(Operation.READ),
        v2_records.QUERY,
    ),
    route("POST", "/consumers/{group}", v2_consumers.create_consumer, _READ_GROUP),
    route("DELETE", _INSTANCE, v2_consumers.delete_consumer, _READ_GROUP),
    route("POST", f"{_INSTANCE}/subscription", v2_consumers.subscribe, _READ_GROUP),
    route("GET", f"{_INSTANCE}/subscription", v2_consumers.describe_subscription, _READ_GROUP),
    route("DELETE", f"{_INSTANCE}/subscription", v2_consumers.unsubscribe, _READ_GROUP),
    route("POST", f"{_INSTANCE}/assignments", v2_consumers.assign, _READ_GROUP),
    route("GET", f"{_INSTANCE}/assignments", v2_consumers.describe_assignments, _READ_GROUP),
    route("POST", f"{_INSTANCE}/positions", v2_consumers.seek, _READ_GROUP),
    route("POST", f"{_INSTANCE}/positions/beginning", v2_consumers.seek_to_beginning, _READ_GROUP),
    route("POST", f"{_INSTANCE}/positions/end", v2_consumers.seek_to_end, _READ_GROUP),
    route("GET", f"{_INSTANCE}/records", v2_reads.read_records, _READ_GROUP, v2_reads.QUERY),
    route("POST", f"{_INSTANCE}/offsets", v2_consumers.commit_offsets, _READ_GROUP),
    route(
        "GET",
        f"{_INSTANCE}/offsets",
        v2_consumers.describe_offsets,
        _READ_GROUP,
        repeatable=v2_consumers.OFFSETS_QUERY,
    ),
)
_CLUSTER = "/v3/clusters/{cluster}"
_TOPIC = f"{_CLUSTER}/topics/{{topic}}"
_PARTITION = f"{_TOPIC}/partitions/{{partition}}"
_GROUP = f"{_CLUSTER}/consumer-groups/{{group}}"
_CONSUMER = f"{_GROUP}/consumers/{{consumer}}"
_DESCRIBE_TOPIC, _DESCRIBE_GROUP = on_topic(Operation.DESCRIBE), on_group(Operation.DESCRIBE)
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = on_topic(Operation.DESCRIBE_CONFIGS), on_topic(Operation.ALTER_CONFIGS)

V3_ROUTES: tuple[Route, ...] = (
    route("GET", "/v3/clusters", v3_cluster.list_clusters, for_every_caller),
    route("GET", _CLUSTER, v3_cluster.describe_cluster, for_every_caller),
    route("GET", f"{_CLUSTER}/brokers", v3_cluster.list_brokers, for_every_caller, PAGE_QUERY),
    route("GET", f"{_CLUSTER}/brokers/{{broker}}", v3_cluster.describe_broker, for_every_caller),
    route("GET", f"{_CLUSTER}/topics", v3_topics.list_topics, by_entry, PAGE_QUERY),
    route("POST", f"{_CLUSTER}/topics", v3_topics.create_topic, by_content),
    route(
        "GET",
        f"{_CLUSTER}/topics/-/partitions/-/reassignment",
        v3_partitions.list_reassignments,
        by_entry,
        PAGE_QUERY,
    ),
    route("GET", _TOPIC, v3_topics.describe_topic, _DESCRIBE_TOPIC),
    route("PATCH", _TOPIC, v3_topics.alter_topic, on_topic(Operation.ALTER)),
    route("DELETE", _TOPIC, v3_topics.delete_topic, on_topic(Operation.DELETE)),
    route("POST", f"{_TOPIC}/records", v3_records.produce_records, on_topic(Operation.WRITE)),
    route("POST", f"{_TOPIC}/records:batch", v3_records.produce_batch, on_topic(Operation.WRITE)),
    route("GET", f"{_TOPIC}/configs", v3_configs.list_configs, _DESCRIBE_CONFIGS, PAGE_QUERY),
    route("POST", f"{_TOPIC}/configs:alter", v3_configs.alter_configs, _ALTER_CONFIGS),
    route("GET", f"{_TOPIC}/configs/{{config}}", v3_configs.describe_config, _DESCRIBE_CONFIGS),
    route("PUT", f"{_TOPIC}/configs/{{config}}", v3_configs.set_config, _ALTER_CONFIGS),
    route("DELETE", f"{_TOPIC}/configs/{{config}}", v3_configs.reset_config, _ALTER_CONFIGS),
    route(
        "GET",
        f"{_TOPIC}/partitions/-/reassignment",
        v3_partitions.list_reassignments_of_topic,
        _DESCRIBE_TOPIC,
        PAGE_QUERY,
    ),
    route("GET", f"{_TOPIC}/partitions", v3_partitions.list_partitions, _DESCRIBE_TOPIC, PAGE_QUERY),
    route("GET", _PARTITION, v3_partitions.describe_partition, _DESCRIBE_TOPIC),
    route("GET", f"{_PARTITION}/replicas", v3_partitions.list_replicas, _DESCRIBE_TOPIC, PAGE_QUERY),
    route("GET", f"{_PARTITION}/replicas/{{broker}}", v3_partitions.describe_replica, _DESCRIBE_TOPIC),
    route("GET", f"{_PARTITION}/reassignment", v3_partitions.describe_reassignment, _DESCRIBE_TOPIC),
    route("GET", f"{_CLUSTER}/consumer-groups", v3_groups.list_groups, by_entry, PAGE_QUERY),
    route("GET", _GROUP, v3_groups.describe_group, _DESCRIBE_GROUP),
    route("GET", f"{_GROUP}/consumers", v3_groups.list_consumers, _DESCRIBE_GROUP, PAGE_QUERY),
    route("GET", _CONSUMER, v3_groups.describe_consumer, _DESCRIBE_GROUP),
    route("GET", f"{_CONSUMER}/assignments", v3_groups.list_assignments, _DESCRIBE_GROUP, PAGE_QUERY),
    route(
        "GET",
        f"{_CONSUMER}/assignments/{{topic}}/partitions/{{partition}}",
        v3_groups.describe_assignment,
        _DESCRIBE_GROUP,
    ),
    route("GET", f"{_GROUP}/lags", v3_groups.list_lags, _DESCRIBE_GROUP, PAGE_QUERY),
    route("GET", f"{_GROUP}/lags/{{topic}}/partitions/{{partition}}", v3_groups.describe_lag, _DESCRIBE_GROUP),
    route("GET", f"{_GROUP}/lag-summary", v3_groups.summarize_lags, _DESCRIBE_GROUP),
    route("GET", f"{_CLUSTER}/acls", v3_acls.search_acls, on_cluster(Operation.DESCRIBE), v3_acls.QUERY),
    route("POST", f"{_CLUSTER}/acls", v3_acls.create_acl, on_cluster(Operation.ALTER)),
    route("DELETE", f"{_CLUSTER}/acls", v3_acls.delete_acls, on_cluster(Operation.ALTER), v3_acls.QUERY),
)

REST_PROXY_ROUTES: tuple[Route, ...] = (*V2_ROUTES, *V3_ROUTES)
"""The API of the Confluent REST Proxy (`http_api/rest_proxy/`), which has an OpenAPI document of its own."""

CONSOLE_ROUTES: tuple[Route, ...] = tuple(
    route(method, path, answer, for_every_caller)
    for method in ("GET", "HEAD")
    for path, answer in (
        (CONSOLE, console.redirect),
        (f"{CONSOLE}/", console.send_index),
        (f"{CONSOLE}/{{file}}", console.send_file),
    )
)
"""The pages of the console (`http_api/console/`); they hold no data."""

VIEWER_ROUTES: tuple[Route, ...] = tuple(
    route(method, path, answer, for_every_caller)
    for method in ("GET", "HEAD")
    for path, answer in (
        (VIEWER, viewer.redirect),
        (f"{VIEWER}/", viewer.send_index),
        (f"{VIEWER}/{{file}}", viewer.send_file),
    )
)
"""The pages that show the OpenAPI documents (`http_api/viewer/`); they hold no data."""

MESSAGE_ROUTES: tuple[Route, ...] = (route("POST", TRANSACTIONS_PATH, transactions.change, by_content),)
"""Messages of the client protocol from clients that cannot reach the data listener; no part of the JSON API."""


def build_app(
    service: BrokerService,
    *,
    allowed_hosts: Iterable[str] = (),
    allowed_origins: Iterable[str] = (),
    limits: Limits | None = None,
    clock_ms: Callable[[], int] = wall_ms,
    rest_compat: str = "confluent",
) -> web.Application:
    """Return the application in front of a broker.

    `allowed_hosts` are the names that `Host` may carry besides loopback's: where the node listens, what it advertises,
    and what the operator adds. `allowed_origins` (`https://name[:port]`) are foreign pages that may use the API from a
    browser. `rest_compat`: a value of the setting of this name. Raises `ValueError` for text that is neither.
    """
    limits = limits or Limits()
    context = ApiContext(
        service,
        HostPolicy.of(allowed_hosts, allowed_origins),
        limits,
        clock_ms,
        refuse=refuse_as_rest_proxy,
        rest_compat=rest_compat,
    )
    # Bodies are read and bounded by `http_api/web/bodies.py`; aiohttp's own bound is for calls that are not used here.
    app = web.Application(middlewares=[answer_request], client_max_size=limits.max_body_bytes)
    app[CONTEXT] = context
    app[FEED] = Feed(app)
    app[PAGES] = SharedPages()
    for method, path, handler in (*ROUTES, *REST_PROXY_ROUTES, *CONSOLE_ROUTES, *VIEWER_ROUTES, *MESSAGE_ROUTES):
        app.router.add_route(method, path, handler)
        if path.startswith("/consumers/"):  # REST proxies take these paths with a slash at the end, too.
            app.router.add_route(method, f"{path}/", handler)
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
    ssl_context: ssl.SSLContext | ContextSource | None = None,
    accepts_plain: bool = False,
    on_refused: OnRefused = lambda peer, error: None,
    most_connections: Callable[[], int | None] = lambda: None,
    on_short: Callable[[OSError], None] = lambda error: None,
) -> tuple[ApiRunner, int]:
    """Listen; port 0 picks a free one. Returns the runner to `cleanup()` and the port. `most_connections`: the number
    allowed now, where that is less than the limits say; `on_short` is called with the error of each `accept` that found
    no descriptor or memory, after which accepting pauses.

    With `ssl_context`, which is called for each connection if it is a source, the API speaks TLS. Plain connections are
    answered with a problem document, or served as well if `accepts_plain`. `on_refused` is called for each connection
    that ended before or in its handshake.

    Raises `OSError` if the address cannot be bound.
    """
    connections = app[CONTEXT].connections
    connections.most_now = most_connections
    door = None
    if ssl_context is not None:
        given = ssl_context
        connections.shares_with_handshakes = True
        source = (lambda: given) if isinstance(given, ssl.SSLContext) else given
        door = TlsDoor(
            source,
            plain=None if accepts_plain else plain_refusal,
            on_refused=on_refused,
            most_handshakes=connections.most_handshakes,
        )
    runner = ApiRunner(app)
    await runner.setup()
    try:
        site = ApiSite(runner, host, port, door=door, on_short=on_short)
        await site.start()
    except BaseException:
        await runner.cleanup()
        raise
    bound: int = runner.addresses[0][1]
    return runner, bound


async def _load(app: web.Application) -> None:
    """Import pyarrow and compress the console's files before anything listens: later that would block the event
    loop."""
    load_arrow()
    console_files()
    viewer_files()


async def _stop_taking_requests(app: web.Application) -> None:
    app[CONTEXT].stop_taking_requests()


async def _close(app: web.Application) -> None:
    await app[CONTEXT].close()
