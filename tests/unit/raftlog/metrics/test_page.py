"""`docs/metrics.md` is that of the present code."""

from __future__ import annotations

from pathlib import Path

from raftlog.metrics.catalogue import ALL
from raftlog.metrics.client_catalogue import ALL_OF_CLIENTS
from raftlog.metrics.page import OF_CLIENTS, SECTIONS, metrics_page

ROOT = Path(__file__).parents[4]


def test_the_page_is_current() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == metrics_page(), "run `make metrics-page`"


def test_each_measure_has_a_row_and_each_section_begins_where_it_should() -> None:
    page = metrics_page()
    assert all(page.count(f"| `{measure.name}` |") == 1 for measure in (*ALL, *ALL_OF_CLIENTS))
    assert all(f"## {title}\n" in page for title, _ in (*SECTIONS, *OF_CLIENTS))
