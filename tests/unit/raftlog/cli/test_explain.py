"""`raftlog explain`: the words of the command, and the text for people."""

from __future__ import annotations

import click
import msgspec
import pytest

from raftlog.broker.explain.partition import explain_partition
from raftlog.cli.commands.explain import path_of, text_of
from tests.support.explained import case, fence


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (["orders/3"], "topics/orders/partitions/3"),
        (["orders/3@1200"], "topics/orders/partitions/3?offset=1200"),
        (["a.b_c-d/0"], "topics/a.b_c-d/partitions/0"),
        (["group", "a/b"], "groups/a%2Fb"),
        (["group:billing"], "groups/billing"),
        (["transaction", "pay 1"], "transactions/pay%201"),
        (["transaction:x:y"], "transactions/x%3Ay"),
    ],
)
def test_the_words_of_a_command(words: list[str], path: str) -> None:
    assert path_of(words, None) == f"/v1/explain/{path}"


def test_a_principal_is_asked_about_with_the_partition() -> None:
    assert path_of(["orders/3@7"], "User:bob") == "/v1/explain/topics/orders/partitions/3?principal=User%3Abob&offset=7"


@pytest.mark.parametrize(
    "words", [[], ["orders"], ["orders/x"], ["orders/1@"], ["group"], ["group", ""], ["topic", "x"], ["a/1", "b/2"]]
)
def test_other_words_are_refused(words: list[str]) -> None:
    with pytest.raises(click.UsageError, match="name TOPIC/PARTITION"):
        path_of(words, None)


def test_rules_are_not_about_transactions() -> None:
    with pytest.raises(click.UsageError, match="--principal"):
        path_of(["transaction", "x"], "User:bob")


def test_the_text_shows_every_part_and_bounds_the_timeline() -> None:
    changes = tuple(msgspec.structs.replace(fence(2, ago_ms=1_000 * n), index=100 + n) for n in range(50, 0, -1))
    found = explain_partition(case(changes=changes, offset=5))
    text = click.unstyle(text_of(found, wide=False))
    assert text.startswith("orders/0@5: led by node 0")
    assert "1. info [healthy] orders/0 is well" in text
    assert "Record 5: below the high watermark: yes" in text
    assert "If a node stopped now:" in text
    assert "(21 older lines: -o wide)" in text
    assert "older lines" not in text_of(found, wide=True)
    assert text.endswith("As node 1 sees it at 2027-01-15 08:00:00.000, metadata index 500")
