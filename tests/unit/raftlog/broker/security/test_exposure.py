"""Warnings about nodes that everybody can use. S12."""

from __future__ import annotations

from raftlog.broker.security.exposure import exposure_problems
from raftlog.config import load_node_config


def test_a_node_that_everybody_can_use_says_so_with_the_remedy() -> None:
    config = load_node_config('api.listen = {host = "10.0.0.1", port = 9640}\nsecurity.insecure = true')
    (line,) = exposure_problems(config)
    assert "api.listen 10.0.0.1:9640" in line and "set up security" in line


def test_a_node_on_loopback_has_no_problem() -> None:
    assert exposure_problems(load_node_config("security.insecure = true")) == []


def test_a_cluster_that_changes_to_tls_says_so() -> None:
    (line,) = exposure_problems(
        load_node_config('[tls]\ncertificate = "a"\nkey = "b"\nauthority = "c"\nmigrating = true')
    )
    assert "can act as a node" in line and "remove it when" in line
