"""The limits that apply to an entity. S11."""

from __future__ import annotations

from typing import Any

from metadata.records.events import QuotaChanged, QuotaRemoved
from metadata.records.security import QuotaLimits, QuotaRecord
from metadata.records.security_table import SecurityTable
from raftlog.broker.security.quotas.limits import QuotaTable
from raftlog.broker.security.quotas.quotas import Held, Limits, Rate


def table_of(**quotas: QuotaLimits) -> tuple[SecurityTable, QuotaTable]:
    table = SecurityTable()
    for entity, limits in quotas.items():
        table.on_event(QuotaChanged(QuotaRecord(entity, limits)))
    return table, QuotaTable(table)


def quotas(**of: QuotaLimits) -> dict[str, Any]:
    return of


def test_without_quotas_there_is_no_limit() -> None:
    _, quota = table_of()
    assert not quota.is_limited()
    assert quota.limits_of("User:alice") is None


def test_an_entitys_own_limits_come_before_the_default_of_its_kind() -> None:
    _, quota = table_of(
        **{
            "User:alice": QuotaLimits(requests_per_second=5),
            "User:*": QuotaLimits(requests_per_second=9, connections=2),
            "Address:*": QuotaLimits(bytes_in_per_second=7),
        }
    )
    assert quota.is_limited()
    assert quota.limits_of("User:alice") == Limits({Rate.REQUESTS: 5}, {Held.CONNECTIONS: 2})
    assert quota.limits_of("User:bob") == Limits({Rate.REQUESTS: 9}, {Held.CONNECTIONS: 2})
    assert quota.limits_of("Address:10.0.0.1") == Limits({Rate.BYTES_IN: 7}, {})


def test_hourly_limits_become_rates_a_second() -> None:
    _, quota = table_of(**{"User:*": QuotaLimits(topics_created_per_hour=36)})
    assert quota.limits_of("User:alice") == Limits({Rate.TOPICS_CREATED: 0.01}, {})


def test_changes_apply_at_once() -> None:
    table, quota = table_of(**{"User:*": QuotaLimits(connections=2)})
    assert quota.limits_of("User:alice") == Limits({}, {Held.CONNECTIONS: 2})
    table.on_event(QuotaChanged(QuotaRecord("User:alice", QuotaLimits(connections=0))))
    assert quota.limits_of("User:alice") == Limits({}, {Held.CONNECTIONS: 0})
    table.on_event(QuotaRemoved("User:alice"))
    table.on_event(QuotaRemoved("User:*"))
    assert quota.limits_of("User:alice") is None
    assert not quota.is_limited()
