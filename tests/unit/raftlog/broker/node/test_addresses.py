"""A voter starts only at the address under which its cluster was prepared."""

from __future__ import annotations

import pytest

from raftlog.broker.node.addresses import address_problem
from raftlog.config import load_node_config
from raftlog.model import Endpoint


def problem(listen: str, advertised: str = "", *, prepared: str | None = "10.0.0.1:9641", started: bool = False) -> str:
    def table(text: str) -> str:
        host, _, port = text.rpartition(":")
        return f'{{ host = "{host}", port = {port} }}'

    text = f"security.insecure = true\ndata.listen = {table(listen)}\n"
    text += f"data.advertised = {table(advertised)}\n" if advertised else ""
    host, _, port = (prepared or "").rpartition(":")
    voter = Endpoint(host, int(port)) if prepared else None
    return address_problem(load_node_config(text), 2, voter, started_before=started)


@pytest.mark.parametrize(
    ("listen", "advertised", "prepared"),
    [
        ("10.0.0.1:9641", "", "10.0.0.1:9641"),
        ("0.0.0.0:9641", "10.0.0.1:9641", "10.0.0.1:9641"),
        ("10.0.0.1:9641", "", "node2.example.org:9641"),
        ("0.0.0.0:9641", "node2:9641", "NODE2.example.org.:9641"),
        ("127.0.0.1:0", "10.0.0.1:9641", "10.0.0.1:9641"),
        ("10.0.0.1:9641", "203.0.113.5:443", "10.0.0.1:9641"),
        ("127.0.0.1:0", "", None),
        ("127.0.0.1:0", "", "127.0.0.1:0"),
        ("::1:9641", "", "0:0:0:0:0:0:0:1:9641"),
    ],
)
def test_a_voter_at_its_address_may_start(listen: str, advertised: str, prepared: str | None) -> None:
    assert problem(listen, advertised, prepared=prepared) == ""


@pytest.mark.parametrize(
    ("listen", "advertised", "why"),
    [
        ("10.0.0.1:9642", "", "it listens at 10.0.0.1:9642"),
        ("10.0.0.9:9641", "", "it listens at 10.0.0.9:9641"),
        ("10.0.0.1:9642", "10.0.0.1:9999", "it advertises 10.0.0.1:9999"),
        ("127.0.0.1:0", "", "give the data listener no port"),
    ],
)
def test_a_voter_elsewhere_is_refused_with_the_remedy(listen: str, advertised: str, why: str) -> None:
    found = problem(listen, advertised)
    for part in (
        why,
        "node 2 is a voter whose address is 10.0.0.1:9641",
        "Set data.listen in node.toml to 10.0.0.1:9641",
    ):
        assert part in found


def test_names_of_different_hosts_differ() -> None:
    assert "it listens at node1:9641" in problem("node1:9641", prepared="node2:9641")


def test_a_voter_that_has_started_may_move_but_not_to_a_random_port() -> None:
    """The cluster follows its registration."""
    assert problem("10.0.0.9:9999", started=True) == ""
    assert "no port" in problem("127.0.0.1:0", started=True)
