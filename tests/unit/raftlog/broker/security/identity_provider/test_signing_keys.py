"""The keys of an identity provider: what is taken of a key set, where it is, and when it is read. S10, S11, S12."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc.jwk import ECKey, OctKey, RSAKey
from structlog import get_logger
from structlog.testing import capture_logs

from raftlog.broker.security.identity_provider.key_set import MAX_KEYS, parse_key_set
from raftlog.broker.security.identity_provider.key_sources import MAX_BYTES, KeyFile, KeyUrl
from raftlog.broker.security.identity_provider.signing_keys import (
    FILE_SECONDS,
    MAX_WAITING,
    RETRY_SECONDS,
    UNKNOWN_KEY_SECONDS,
    URL_SECONDS,
    WAIT_SECONDS,
    SigningKeys,
)
from raftlog.config import OidcConfig
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.slices import PER_TURN
from tests.support.partitions.manual import ManualScheduler, ManualWorker
from tests.support.security.identity_provider import AUDIENCE, ISSUER, IdentityProvider


@functools.cache
def provider() -> IdentityProvider:
    return IdentityProvider()


def key_set(*keys: Any) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


def public(name: str, **changes: Any) -> dict[str, Any]:
    return {**provider().keys[name].as_dict(private=False), **changes}


class TestKeySet:
    def test_each_key_serves_its_family_only(self) -> None:
        found = parse_key_set(provider().published())
        assert [found.find("rsa", name) is not None for name in ("RS256", "PS256", "ES256", "none")] == [
            *(True, True, False, False)
        ]
        assert found.find("ec", "ES256") and not found.find("ec", "RS256")
        assert found.find("ed", "EdDSA") and found.find("ed", "Ed25519") and not found.find("ed", "ES256")
        assert found.find("other", "RS256") is None

    def test_the_algorithm_of_a_key_narrows_it(self) -> None:
        found = parse_key_set(key_set(public("rsa", alg="PS256"), public("ed", alg="EdDSA")))
        assert found.find("rsa", "PS256") and not found.find("rsa", "RS256") and found.find("ed", "Ed25519")

    def test_private_parts_are_not_taken(self) -> None:
        found = parse_key_set(key_set(provider().keys["ec"].as_dict(private=True)))
        key = found.find("ec", "ES256")
        assert key is not None and not key.key.is_private

    @pytest.mark.parametrize(
        "key",
        [
            OctKey.generate_key(256).as_dict(),
            {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
            {"kty": "RSA", "n": "!" * 400, "e": "AQAB"},
            {"kty": "RSA", "n": "A" * 100_000, "e": "AQAB"},
            {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
            {"kty": "OKP", "crv": "X25519", "x": "A" * 43},
            {"kty": "ML-DSA", "alg": "ML-DSA-44", "pub": "AA"},
            {"kty": 7},
            {},
        ],
    )
    def test_other_keys_are_left_out_s12(self, key: dict[str, Any]) -> None:
        assert len(parse_key_set(key_set(key, public("ec")))) == 1
        with pytest.raises(InvalidRequest, match="none of its 1 keys can verify"):
            parse_key_set(key_set(key))

    @pytest.mark.parametrize(
        "changes", [{"use": "enc"}, {"key_ops": ["sign"]}, {"key_ops": 7}, {"alg": "ES384"}, {"alg": []}, {"kid": 7}]
    )
    def test_keys_for_other_uses_are_left_out_s12(self, changes: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequest):
            parse_key_set(key_set(public("ec", **changes)))

    def test_curves_and_lengths_that_are_too_weak_s12(self) -> None:
        weak = ECKey.generate_key("P-384").as_dict(private=False)
        assert len(parse_key_set(key_set(weak, public("rsa")))) == 1

    @pytest.mark.parametrize(
        "content", [b"", b"[]", b"{}", b'{"keys":{}}', b'{"keys":[7]}', b'{"keys":[]}', b"[" * 9999]
    )
    def test_a_file_that_is_no_key_set_s11(self, content: bytes) -> None:
        with pytest.raises(InvalidRequest, match="key set cannot be used") as caught:
            parse_key_set(content)
        assert caught.value.code == "invalid_config"

    def test_the_number_of_keys_is_bounded_s11(self) -> None:
        with pytest.raises(InvalidRequest, match="101 keys, more than 100"):
            parse_key_set(key_set(*[public("ec")] * (MAX_KEYS + 1)))

    @given(st.binary(max_size=200))
    def test_any_bytes_give_one_error_s11(self, content: bytes) -> None:
        with pytest.raises(InvalidRequest):
            parse_key_set(content)


class TestSources:
    def test_a_file_is_read_again_when_it_changes(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.json"
        source = KeyFile(str(path))
        with pytest.raises(InvalidRequest, match=r"cannot read .*keys\.json: No such file"):
            source()
        path.write_bytes(b"one")
        assert source() == b"one" and source() is None
        new = tmp_path / "new"
        new.write_bytes(b"two")
        os.replace(new, path)
        assert source() == b"two"
        path.unlink()
        with pytest.raises(InvalidRequest):
            source()

    def test_a_file_is_bounded_s11(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.json"
        path.write_bytes(b" " * (MAX_BYTES + 1))
        with pytest.raises(InvalidRequest, match="has more than"):
            KeyFile(str(path))()

    def test_a_pipe_is_not_waited_for_s11(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        for path in (tmp_path / "pipe", tmp_path):
            with pytest.raises(InvalidRequest, match="is not a regular file"):
                KeyFile(str(path))()

    def test_the_url_of_the_settings(self) -> None:
        asked: list[str] = []
        config = OidcConfig(issuer=ISSUER, audience=AUDIENCE, jwks="https://keys.example.org/jwks")
        KeyUrl(config, lambda url: asked.append(url) or b"")()  # type: ignore[func-returns-value]
        assert asked == ["https://keys.example.org/jwks"]

    @pytest.mark.parametrize("issuer", [ISSUER, "https://login.example.org", "https://login.example.org/realms/a"])
    def test_the_url_that_the_provider_names(self, issuer: str) -> None:
        asked: list[str] = []

        def fetch(url: str) -> bytes:
            asked.append(url)
            return json.dumps({"issuer": issuer, "jwks_uri": "https://k/jwks", "more": 1}).encode()

        KeyUrl(OidcConfig(issuer=issuer, audience=AUDIENCE), fetch)()
        assert asked == [issuer.rstrip("/") + "/.well-known/openid-configuration", "https://k/jwks"]

    @pytest.mark.parametrize(
        ("document", "why"),
        [
            (b"", "is no discovery document"),
            (b"<html>", "is no discovery document"),
            (b"{}", "is no discovery document"),
            (b'{"issuer":"https://evil/","jwks_uri":"https://k"}', "must be exactly that"),
            (b'{"issuer":"https://login.example.org","jwks_uri":"https://k"}', "must be exactly that"),
            (b'{"issuer":"https://login.example.org/","jwks_uri":"http://k"}', "not on https"),
            (b'{"issuer":"https://login.example.org/","jwks_uri":"file:///etc/passwd"}', "not on https"),
        ],
    )
    def test_a_discovery_document_of_somebody_else_s12(self, document: bytes, why: str) -> None:
        with pytest.raises(InvalidRequest, match=why):
            KeyUrl(OidcConfig(issuer=ISSUER, audience=AUDIENCE), lambda url: document)()


class World:
    """Signing keys whose source answers with `content`, or fails with it."""

    def __init__(self, content: bytes | Exception | None = None, interval: float = URL_SECONDS) -> None:
        self.content: bytes | Exception | None = provider().published("rsa") if content is None else content
        self.scheduler = ManualScheduler()
        self.worker = ManualWorker(self.scheduler)
        self.reads = 0
        self.answered: list[str] = []
        self.keys = SigningKeys(self.source, interval, self.scheduler.clock, self.scheduler, self.worker, get_logger())

    def source(self) -> bytes | None:
        self.reads += 1
        if isinstance(self.content, Exception):
            raise self.content
        return self.content

    def advance(self, seconds: float) -> None:
        """Let time pass in which every reading ends at once."""
        for _ in range(round(seconds)):
            self.scheduler.advance(1.0)
            self.worker.run_all()

    def ask(self, name: str = "asked") -> None:
        self.keys.after_reading(lambda: self.answered.append(name))

    @property
    def has(self) -> list[str]:
        names = {"rsa": "RS256", "ec": "ES256"}
        return [name for name, algorithm in names.items() if self.keys.find(name, algorithm) is not None]


def started(**settings: Any) -> World:
    world = World(**settings)
    world.keys.start()
    world.worker.run_all()
    return world


class TestReading:
    def test_keys_are_read_at_the_start_and_every_hour(self) -> None:
        world = started()
        assert world.has == ["rsa"] and world.keys.is_known and world.keys.problems() == []
        world.content = provider().published("ec")
        world.advance(URL_SECONDS - 1)
        assert world.reads == 1
        world.advance(1)
        assert world.reads == 2 and world.has == ["ec"]

    def test_an_unknown_key_is_looked_up_at_most_once_a_minute_s11(self) -> None:
        world = started()
        for _ in range(100):
            world.ask()
        assert len(world.answered) == 100 and world.reads == 1 and not world.worker.pending
        world.advance(UNKNOWN_KEY_SECONDS)
        world.content = provider().published("rsa", "ec")
        for number in range(100):
            world.ask(str(number))
        assert len(world.answered) == 100 and len(world.worker.pending) == 1, "one reading for all of them"
        world.worker.run_all()
        assert world.answered[100:] == [str(number) for number in range(100)] and world.has == ["rsa", "ec"]
        world.ask()
        assert not world.worker.pending

    def test_a_token_that_arrives_during_the_first_reading_waits_for_it(self) -> None:
        world = World()
        world.keys.start()
        world.ask()
        assert world.answered == [] and len(world.worker.pending) == 1
        world.worker.run_all()
        assert world.answered == ["asked"]

    def test_no_token_waits_longer_than_its_time_s10(self) -> None:
        world = World()
        world.keys.start()
        world.ask()
        world.scheduler.advance(WAIT_SECONDS - 1)
        assert world.answered == []
        world.scheduler.advance(1)
        assert world.answered == ["asked"]
        world.worker.run_all()
        assert world.answered == ["asked"] and world.has == ["rsa"]

    def test_the_tokens_that_wait_are_bounded_s11(self) -> None:
        world = World()
        world.keys.start()
        for _ in range(MAX_WAITING + 5):
            world.ask()
        assert len(world.answered) == 5

    def test_the_tokens_that_waited_are_checked_in_turns_s11(self) -> None:
        """Each takes the time of a signature, and strangers may have sent all of them."""
        world = World()
        world.keys.start()
        for _ in range(MAX_WAITING):
            world.ask()
        world.worker.run_one()
        assert world.scheduler.run_one() and len(world.answered) == PER_TURN
        world.scheduler.run()
        assert len(world.answered) == MAX_WAITING

    def test_the_end_answers_every_token_that_waits(self) -> None:
        world = World()
        world.keys.start()
        for _ in range(PER_TURN + 1):
            world.ask()
        world.keys.close()
        assert len(world.answered) == PER_TURN + 1

    @pytest.mark.parametrize(
        "failure",
        [RetriableError("overloaded", "no answer"), b"<html>", b'{"keys":[]}', InvalidRequest("not_found", "x")],
    )
    def test_stale_keys_serve_while_the_provider_is_away_s10(self, failure: bytes | Exception) -> None:
        world = started()
        world.content = failure
        with capture_logs() as logs:
            world.advance(URL_SECONDS + 10 * RETRY_SECONDS)
        assert world.has == ["rsa"] and [log["event"] for log in logs] == ["signing_keys_not_read"]
        assert "the keys that were read before are still in use" in world.keys.problems()[0]
        world.content = provider().published("ec")
        with capture_logs() as logs:
            world.advance(RETRY_SECONDS)
        assert world.has == ["ec"] and world.keys.problems() == []
        assert [log["event"] for log in logs] == ["signing_keys_read"]

    def test_a_provider_that_is_away_at_the_start_is_asked_again_soon_s10(self) -> None:
        world = started(content=RetriableError("overloaded", "no answer"))
        assert not world.keys.is_known and "no access token is accepted" in world.keys.problems()[0]
        world.content = provider().published("rsa")
        world.advance(RETRY_SECONDS)
        assert world.has == ["rsa"]

    def test_a_bug_in_reading_is_reported_and_reading_goes_on_s10(self) -> None:
        world = World(content=ZeroDivisionError())
        world.keys.start()
        world.ask()
        with pytest.raises(ZeroDivisionError):
            world.worker.run_all()
        assert world.answered == ["asked"]
        world.content = provider().published("rsa")
        world.advance(RETRY_SECONDS)
        assert world.has == ["rsa"]

    def test_a_closed_set_reads_no_more_and_keeps_nobody_waiting(self) -> None:
        world = World()
        world.keys.start()
        world.ask()
        world.keys.close()
        assert world.answered == ["asked"]
        world.worker.run_all()
        world.ask("late")
        world.advance(2 * URL_SECONDS)
        assert world.answered == ["asked", "late"] and world.reads == 1

    def test_a_file_that_changes_is_used_within_seconds(self, tmp_path: Path) -> None:
        path = tmp_path / "keys.json"
        path.write_bytes(provider().published("rsa"))
        world = World(interval=2.0)
        source = KeyFile(str(path))
        world.keys = SigningKeys(source, 2.0, world.scheduler.clock, world.scheduler, world.worker, get_logger())
        world.keys.start()
        world.worker.run_all()
        assert world.has == ["rsa"]
        path.write_bytes(provider().published("rsa", "ec"))
        world.advance(2)
        assert world.has == ["rsa", "ec"]
        path.write_bytes(b"half a fil")
        world.advance(2)
        assert world.has == ["rsa", "ec"] and "still in use" in world.keys.problems()[0]


def test_a_long_rsa_key_costs_too_much_s11() -> None:
    number = (1 << 16383) | 1
    from joserfc.util import int_to_base64

    with pytest.raises(InvalidRequest):
        parse_key_set(key_set({"kty": "RSA", "n": int_to_base64(number), "e": "AQAB"}))
    assert len(parse_key_set(key_set(RSAKey.generate_key(2048).as_dict(private=False)))) == 1


@pytest.mark.parametrize("broken", [b"{", b'{"keys":[]}'])
def test_a_broken_file_is_a_problem_until_it_is_good_again(tmp_path: Path, broken: bytes) -> None:
    """Looked at every two seconds, it is read only when it changes; the old keys serve meanwhile."""
    path = tmp_path / "keys.json"
    path.write_bytes(provider().published("rsa"))
    world = World(interval=FILE_SECONDS)
    world.keys = SigningKeys(
        KeyFile(str(path)), FILE_SECONDS, world.scheduler.clock, world.scheduler, world.worker, get_logger()
    )
    world.keys.start()
    world.advance(3)
    assert world.keys.is_known and world.keys.problems() == []

    def replace(content: bytes) -> None:
        (tmp_path / "new").write_bytes(content)
        os.replace(tmp_path / "new", path)

    for _ in range(2):
        replace(broken)
        for _ in range(10):
            world.advance(3)
            (problem,) = world.keys.problems()
            assert "key set cannot be used" in problem and "still in use" in problem
        os.rename(path, tmp_path / "aside")
        for _ in range(10):
            world.advance(3)
            (problem,) = world.keys.problems()
            assert "No such file" in problem and "still in use" in problem
        os.rename(tmp_path / "aside", path)
        world.advance(3)
        (problem,) = world.keys.problems()
        assert "key set cannot be used" in problem, "the same broken file is back"
        replace(provider().published("rsa"))
        world.advance(3)
        assert world.keys.problems() == []
    world.keys.close()
