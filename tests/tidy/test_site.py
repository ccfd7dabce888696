"""The documentation site: its navigation has every page, and its generated page is that of the present code."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from typing import Any

import yaml

from .sources import ROOT

HIDDEN = {"README.md"}
"""Documents that are for readers of the repository only."""


class Loader(yaml.SafeLoader):
    """Reads the site's settings, in which a Python name is only a string here."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)


def pages_of(navigation: Any) -> Iterator[str]:
    if isinstance(navigation, str):
        yield navigation
    else:
        for entry in navigation.values() if isinstance(navigation, dict) else navigation:
            yield from pages_of(entry)


def test_every_page_is_in_the_navigation_once() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    listed = list(pages_of(settings["nav"]))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - HIDDEN
    assert sorted(page for page in listed if not page.startswith("source/")) == sorted(pages), "nav of mkdocs.yml"
    assert all((ROOT / page.removeprefix("source/")).is_file() for page in listed if page.startswith("source/"))


def test_the_manual_lists_every_page() -> None:
    listed = (ROOT / "docs" / "README.md").read_text()
    missing = [path.name for path in (ROOT / "docs").glob("*.md") if f"`{path.name}`" not in listed]
    assert [name for name in missing if name not in HIDDEN] == []


def test_the_page_of_errors_has_every_code_with_cause_and_remedy() -> None:
    generator = runpy.run_path(str(ROOT / "docs" / "site" / "error_reference.py"))
    remedies = generator["remedies_of_file"]()
    for code, remedy in remedies.items():
        assert remedy.keys() == {"cause", "remedy"}, code
        assert all(text.endswith(".") and len(text) > 5 for text in remedy.values()), code
    assert generator["page"](remedies) == (ROOT / "docs" / "errors.md").read_text(), (
        "python docs/site/error_reference.py"
    )
