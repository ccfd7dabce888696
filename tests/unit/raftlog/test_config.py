"""Settings: accepted values, and the errors for others."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.config import (
    MAX_BATCH_BYTES,
    MAX_FETCH_BYTES,
    MAX_REQUEST_BYTES,
    MAX_TOPIC_NAME,
    MAX_WIRE_MESSAGE_BYTES,
    PUSH_MESSAGE_BYTES,
    TOPIC_CONFIG_NAMES,
    NodeConfig,
    NodeFile,
    TopicConfig,
    check_topic_name,
    load_node_config,
    majority,
    parse_topic_config,
)
from raftlog.errors import InvalidRequest

MANUAL = Path(__file__).parents[3] / "docs" / "node.md"


def test_bounds_are_consistent() -> None:
    """One batch fits a push; the largest request and answer fit a message."""
    assert MAX_BATCH_BYTES < PUSH_MESSAGE_BYTES < MAX_WIRE_MESSAGE_BYTES
    assert max(MAX_REQUEST_BYTES, MAX_FETCH_BYTES) + MAX_BATCH_BYTES < MAX_WIRE_MESSAGE_BYTES


@pytest.mark.parametrize("name", ["a", "orders", "A.b_c-9", "...", "x" * MAX_TOPIC_NAME])
def test_kafkas_topic_names_are_accepted(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "größe", "a\n", "\0", "x" * (MAX_TOPIC_NAME + 1)])
def test_other_topic_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is not allowed: 1 to 249 of letters") as caught:
        check_topic_name(name)
    assert caught.value.code == "invalid_topic_name"


def test_a_majority_is_more_than_half() -> None:
    assert [majority(replicas) for replicas in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


# --- A topic's settings ----------------------------------------------------------------------------------------------


def test_topic_settings_have_kafkas_names() -> None:
    parsed = parse_topic_config(
        {"retention.ms": "-1", "max.message.bytes": "1024", "flush": "os", "message.timestamp.type": "LogAppendTime"}
    )
    assert parsed == TopicConfig(
        retention_ms=-1, max_message_bytes=1024, flush="os", message_timestamp_type="LogAppendTime"
    )
    assert parse_topic_config({}) == TopicConfig()


def test_every_default_may_be_given() -> None:
    said = {name: str(getattr(TopicConfig(), attribute)) for name, attribute in TOPIC_CONFIG_NAMES.items()}
    assert len(said) == len(fields(TopicConfig))
    del said["min.insync.replicas"]  # 0 stands for a majority, and is never written
    assert parse_topic_config(said) == TopicConfig()


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("retention", "1", "unknown topic setting 'retention'; known are cleanup.policy"),
        ("retention_ms", "1", "unknown topic setting"),
        ("x" * 1000, "1", f"unknown topic setting '{'x' * 64}'"),
        ("flush", "never", "flush must be fsync or os, not 'never'"),
        ("cleanup.policy", "compacted", "cleanup.policy must be delete or compact"),
        ("min.cleanable.dirty.ratio", "1.01", "min.cleanable.dirty.ratio must be between 0 and 1"),
        ("min.cleanable.dirty.ratio", "nan", "must be between 0 and 1"),
        ("retention.ms", "-2", "retention.ms must be between -1 and"),
        ("segment.bytes", "1023", "segment.bytes must be between 1024 and 2147483647, not 1023"),
        ("max.message.bytes", str(MAX_BATCH_BYTES + 1), "must be between 1024 and 1048576"),
        ("min.insync.replicas", "0", "must be between 1 and 32"),
        ("retention.ms", str(2**62 + 1), "must be between"),
        ("retention.ms", "9" * 5000, "must be a whole number"),
        ("retention.ms", "", "retention.ms must be a whole number, not ''"),
        ("retention.ms", "1.5", "must be a whole number"),
        ("retention.ms", "1_000", "must be a whole number"),
        ("retention.ms", " 5", "must be a whole number"),
        ("retention.ms", "+5", "must be a whole number"),
        ("retention.ms", "٣", "must be a whole number"),
        ("retention.ms", "5" + " " * 31 + "days", "must be a whole number"),
        ("retention.ms", "0" * 40 + "5", "must be a whole number"),
    ],
)
def test_other_topic_settings_are_refused(name: str, text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        parse_topic_config({name: text})
    assert caught.value.code == "invalid_config"
    assert len(caught.value.detail) < 500


@given(st.dictionaries(st.sampled_from(sorted(TOPIC_CONFIG_NAMES)) | st.text(), st.integers().map(str) | st.text()))
def test_any_topic_settings_are_accepted_or_refused(configs: dict[str, str]) -> None:
    try:
        parse_topic_config(configs)
    except InvalidRequest as error:
        assert error.code == "invalid_config"


# --- A node's settings -----------------------------------------------------------------------------------------------


def test_an_empty_file_gives_every_default() -> None:
    assert load_node_config("") == NodeConfig()


def test_a_file_overrides_defaults() -> None:
    config = load_node_config(
        """
        rack = "a"
        data = {listen = {host = "0.0.0.0", port = 9641}, advertised = {host = "one.example", port = 9641}}
        [peers.2]
        data = {host = "127.0.0.1", port = 19661}
        [timing]
        broker_session_ms = 800
        [security]
        insecure = true
        """
    )
    assert (config.rack, config.data.listen.port, config.timing.broker_session_ms) == ("a", 9641, 800)
    assert config.data.advertised is not None and config.data.advertised.endpoint.host == "one.example"
    assert config.peers["2"].data.port == 19661


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rack = ", "it is no TOML: Invalid value"),
        ("rack = 1", "rack must be a text in quotation marks, not 1"),
        ("fsync_treads = 2", r"fsync_treads is no setting of the top level; did you mean fsync_threads\?"),
        ("fsync_threads = 0", r"fsync_threads must be a whole number from 1 to 64 \(threads\), not 0"),
        ("worker_threads = 65", "worker_threads must be a whole number from 1 to 64 .*, not 65"),
        ("retention_check_ms = 0", r"from 1 to 86400000 \(milliseconds\), not 0"),
        ("metadata_snapshot_entries = 9", "metadata_snapshot_entries must be a whole number from 10"),
        ("fetch_cache_bytes = -1", "fetch_cache_bytes must be a whole number from 0"),
        ('data_folder = ""', 'data_folder must be a text in quotation marks that is not empty, not ""'),
        ('log_level = "loud"', 'log_level must be "debug", "info", "warning" or "error", not "loud"'),
        ("api = {listen = {port = 65536}}", "api.listen.port must be a whole number from 0 to 65535, not 65536"),
        ("api = {listen = {port = -1}}", "api.listen.port must be"),
        ('data = {advertised = {host = ""}}', "data.advertised.host must be"),
        ("peers = {one = {data = {port = 1}}}", "peers.one is no node id"),
        ("timing = {broker_heartbeat_ms = 0}", "timing.broker_heartbeat_ms must be"),
        ("timing = {produce_timeout_ms = -5}", "timing.produce_timeout_ms must be"),
        ("timing = {replica_lag_max_ms = 0}", "timing.replica_lag_max_ms must be"),
        ("timing = {quorum_heartbeat_ms = 150}", "must keep 2 . quorum_heartbeat_ms < election_timeout_min_ms"),
        ("timing = {election_timeout_max_ms = 300}", "must keep election_timeout_min_ms < election_timeout_max_ms"),
        ("timing = {broker_heartbeat_ms = 300}", "must keep 3 . broker_heartbeat_ms < broker_session_ms"),
        ("timing = {broker_session_ms = 901}", r"must keep election_timeout_max_ms \+ broker_session_ms <= 1500"),
        ("a = " + "[" * 5000, "it is no TOML|it is nested too deeply"),
    ],
)
def test_an_invalid_file_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        load_node_config(text)
    assert caught.value.code == "invalid_config" and caught.value.detail.startswith("node.toml")


LISTEN = """
api.listen = { host = "127.0.0.1", port = 9640 }
data.listen = { host = "127.0.0.1", port = 9641 }
"""


def test_a_file_must_name_both_listeners() -> None:
    """A node on random ports is found by no client and no other node."""
    assert NodeFile(LISTEN).problems == [] and NodeFile(LISTEN).value is not None
    for text in ("", "[api]\n[data]\n", 'api.listen.host = "127.0.0.1"\ndata.listen = {}'):
        problems = NodeFile(text).problems
        assert [problem.setting for problem in problems] == ["api.listen.port", "data.listen.port"]
        assert "random port" in problems[0].reason and "port = 9640" in problems[0].reason
        with pytest.raises(InvalidRequest, match=r"data.listen.port|api.listen.port"):
            NodeFile(text).checked("node.toml")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_listener_at_all_addresses_must_advertise_one_that_others_can_dial(host: str) -> None:
    text = LISTEN.replace("127.0.0.1", host) + "security.insecure = true\n"
    problems = NodeFile(text).problems
    assert [(p.line, p.setting) for p in problems] == [(2, "api.listen.host"), (3, "data.listen.host")]
    assert "data.advertised" in problems[1].reason
    named = 'api.advertised = { host = "n", port = 1 }\ndata.advertised = { host = "n", port = 2 }\n'
    assert NodeFile(text + named).problems == []
    for wrong in (named.replace('"n"', f'"{host}"'), named.replace("port = 2", "port = 0")):
        assert NodeFile(text + wrong).problems[-1].setting == "data.advertised"


def test_the_manuals_example_is_accepted() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", MANUAL.read_text(), re.DOTALL)
    config = load_node_config(example)
    assert (config.api.listen.port, config.data.listen.port) == (9640, 9641)


# --- A node's security -----------------------------------------------------------------------------------------------

TLS = '[tls]\ncertificate = "a"\nkey = "b"\nauthority = "c"\n'


def test_security_is_off_by_default() -> None:
    config = load_node_config("")
    assert not config.security.is_on and config.security.user_name == "URI:raftlog:/user/{user}"


def test_all_settings_of_security() -> None:
    security = load_node_config(
        TLS
        + """
        [security]
        mode = "required"
        super_users = ["User:admin", "User:CN=a:b"]
        insecure = true
        user_name = "email:{user}@example.org"
        [security.oidc]
        issuer = "https://login.example.org/realm"
        audience = "raftlog"
        jwks = "keys.json"
        authority = "idp.pem"
        principal_claim = "preferred_username"
        groups_claim = "roles"
        """
    ).security
    assert security.is_on and security.super_users == ("User:admin", "User:CN=a:b")
    assert security.oidc is not None and not security.oidc.jwks_is_a_url
    assert security.oidc.principal_claim == "preferred_username"


@pytest.mark.parametrize("mode", ["optional", "required"])
def test_credentials_need_tls_s12(mode: str) -> None:
    with pytest.raises(InvalidRequest, match=r"needs the section \[tls\]"):
        load_node_config(f'[security]\nmode = "{mode}"')
    assert load_node_config(f'[security]\nmode = "{mode}"\n{TLS}').security.mode == mode


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "10.0.0.1", "::", "2001:db8::1", "::ffff:10.0.0.1", "node0", "localhost.x"]
)
@pytest.mark.parametrize("listener", ["api", "data"])
def test_other_machines_reach_no_listener_without_security_unless_the_operator_says_so(
    listener: str, host: str
) -> None:
    """S12."""
    listen = f'{listener}.listen = {{host = "{host}", port = 1}}\n'
    with pytest.raises(InvalidRequest) as refused:
        load_node_config(listen)
    for part in (f"{listener}.listen", host, "security.mode is 'off'", "--secure", "insecure = true", "127.0.0.1"):
        assert part in refused.value.detail
    with pytest.raises(InvalidRequest, match="other machines"):
        load_node_config(f"{listen}{TLS}")
    assert len(load_node_config(f"{listen}security.insecure = true").exposed) == 1
    for mode in ("optional", "required"):
        assert load_node_config(f'{listen}security.mode = "{mode}"\n{TLS}').exposed == {}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.77.1.2", "::1", "::ffff:127.0.0.1", "localhost", "LOCALHOST."])
def test_loopback_needs_no_security(host: str) -> None:
    config = load_node_config(f'api.listen = {{host = "{host}"}}\ndata.listen = {{host = "{host}"}}')
    assert config.exposed == {}


def test_plain_text_is_accepted_while_a_cluster_changes_and_never_beside_required_credentials() -> None:
    """S12."""
    migrating = TLS + "migrating = true\n"
    assert load_node_config(migrating).accepts_plain
    assert load_node_config(f'{migrating}[security]\nmode = "optional"').accepts_plain
    assert load_node_config(f'{TLS}[security]\nmode = "optional"').accepts_plain
    assert not load_node_config(TLS).accepts_plain
    assert not load_node_config(f'{TLS}[security]\nmode = "required"').accepts_plain
    with pytest.raises(InvalidRequest, match="anybody can be a node"):
        load_node_config(f'{migrating}[security]\nmode = "required"')
    with pytest.raises(InvalidRequest, match="set together"):
        load_node_config(f'{TLS}api_certificate = "d"')


OIDC = '[security.oidc]\naudience = "a"\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[security]\nmode = "on"', 'security.mode must be "off", "optional" or "required", not "on"'),
        ("[security]\nmodes = 1", "security.modes is no setting of [security]; did you mean mode?"),
        ('[security]\nsuper_users = ["admin"]', "as in \"User:admin\", not 'admin'"),
        ('[security]\nsuper_users = ["Group:admins"]', "super_users must name users"),
        ('[security]\nsuper_users = ["User:*"]', "is reserved"),
        ('[security]\nsuper_users = ["User:"]', "1 to 255 characters"),
        ('[security]\nuser_name = "CN:{user}"', "must begin with 'URI:', 'DNS:' or 'email:'"),
        ('[security]\nuser_name = "URI:x"', "must contain {user} once"),
        ('[security]\nuser_name = "URI:{user}{user}"', "must contain {user} once"),
        ('[security]\nuser_name = "URI:{node_id}{user}"', "may contain only the fields {user} and {cluster_id}"),
        ('[security]\nuser_name = "URI:{cluster_id}-{user}"', "must have a '/' between"),
        ('[security.oidc]\nissuer = "https://a"', "security.oidc.audience is missing"),
        (OIDC + 'issuer = "http://a"', "issuer must be an https URL"),
        (OIDC + 'issuer = "a"', "issuer must be an https URL"),
        (OIDC + 'issuer = "https://"', "issuer must be an https URL"),
        (OIDC + 'issuer = "https://a:b/"', "is no URL"),
        (OIDC + 'issuer = "https://a/?b"', "neither a query nor a fragment"),
        (OIDC + 'issuer = "https://u:p@a/"', "must not contain a user or a password"),
        (OIDC + 'issuer = "https://a"\njwks = "http://a/keys"', "jwks must be an https URL"),
        (OIDC + 'issuer = "https://a"\njwks = "file:///keys"', "jwks must be an https URL"),
    ],
)
def test_wrong_settings_of_security_are_named_s11(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        load_node_config(text)
    assert caught.value.code == "invalid_config" and why in caught.value.detail
