"""A refusal does the same work whether the name, the password, the id or the secret is wrong. S12.

The work is the sequence of cryptographic computations, with the lengths of their inputs, and of lookups. Time is
measured in `tests/integration/security/test_refusal_times.py`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.support.security.authenticated_world import AuthenticatedWorld
from tests.support.security.refusals import (
    DISABLED,
    KNOWN,
    REMOVED,
    REVOKED,
    SCRAM_NAMES,
    UNKNOWN,
    UNKNOWN_ID,
    WRONG_SECRET,
    Refused,
    ShortcutChecks,
    ShortcutScram,
    answers_of,
    passwords_of,
    plant_a_lookup_by_token_id,
    scram_exchange,
    tokens_of,
)


class Work:
    """Records the calls of some functions, in order, with the lengths of their arguments."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._calls: list[tuple[Any, ...]] = []
        for name in ("digest", "compare_digest"):
            self.watch(hmac, name)
        for name in ("new", "sha256", "pbkdf2_hmac"):
            self.watch(hashlib, name)

    def watch(self, owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def watched(*arguments: Any) -> Any:
            lengths = [len(each) if isinstance(each, str | bytes) else 0 for each in arguments]
            self._calls.append((name, *lengths))
            return call(*arguments)

        self._patch.setattr(owner, name, watched)

    def of(self, run: Callable[[], object]) -> tuple[tuple[Any, ...], ...]:
        self._calls.clear()
        run()
        return tuple(self._calls)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


def watched_world(work: Work, **settings: Any) -> AuthenticatedWorld:
    world = AuthenticatedWorld(**settings)
    work.watch(world.hasher, "matches")
    work.watch(world.hasher, "prepared")
    work.watch(world.table, "user")
    work.watch(world.table, "token_of_digest")
    return world


def work_by_kind(
    work: Work, world: AuthenticatedWorld, refused: Mapping[str, Refused]
) -> Mapping[str, tuple[tuple[Any, ...], ...]]:
    """Kind → the work of its refusal. Credentials are made before, and none is refused for the first time."""
    found = {}
    for kind, make in refused.items():
        presented = make()
        answers_of(world, presented)
        found[kind] = work.of(lambda presented=presented: answers_of(world, presented))
    return found


class TestPasswords:
    def test_every_wrong_login_does_the_same_work_s12(self, work: Work) -> None:
        world = watched_world(work)
        done = work_by_kind(work, world, passwords_of(world, password="correct horse"))
        assert set(done) == {KNOWN, UNKNOWN, DISABLED, REMOVED}
        assert len(set(done.values())) == 1, done
        assert [call[0] for call in done[KNOWN]].count("matches") == 1

    def test_it_gets_the_same_answer_s12(self, work: Work) -> None:
        world = watched_world(work)
        refused = passwords_of(world, password="correct horse")
        assert len({answers_of(world, make()) for make in refused.values()}) == 1

    def test_no_hash_for_an_unknown_name_is_found(self, work: Work) -> None:
        """The planted shortcut."""
        world = watched_world(work, checks=ShortcutChecks)
        done = work_by_kind(work, world, passwords_of(world, password="correct horse"))
        assert done[UNKNOWN] == done[REMOVED] != done[KNOWN] == done[DISABLED]


class TestTokens:
    def test_every_wrong_token_does_the_same_work_s12(self, work: Work) -> None:
        world = watched_world(work)
        done = work_by_kind(work, world, tokens_of(world))
        assert set(done) == {WRONG_SECRET, UNKNOWN_ID, REVOKED}
        assert len(set(done.values())) == 1, done
        assert [call[0] for call in done[WRONG_SECRET]] == ["sha256", "token_of_digest"]

    def test_it_gets_the_same_answer_s12(self, work: Work) -> None:
        world = watched_world(work)
        assert len({answers_of(world, make()) for make in tokens_of(world).values()}) == 1

    def test_a_lookup_by_id_before_the_digest_is_found(self, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
        """The planted shortcut."""
        world = watched_world(work)
        refused = tokens_of(world)
        plant_a_lookup_by_token_id(world, monkeypatch)
        done = work_by_kind(work, world, refused)
        assert done[UNKNOWN_ID] == done[REVOKED] != done[WRONG_SECRET]


class TestScram:
    def test_every_wrong_proof_does_the_same_work_s12(self, work: Work) -> None:
        done = {kind: work.of(scram_exchange(name)) for kind, name in SCRAM_NAMES.items()}
        assert done[KNOWN] == done[UNKNOWN] and len(done[KNOWN]) >= 3

    def test_no_proof_for_an_unknown_name_is_found(self, work: Work) -> None:
        """The planted shortcut."""
        done = {kind: work.of(scram_exchange(name, ShortcutScram)) for kind, name in SCRAM_NAMES.items()}
        assert done[KNOWN] != done[UNKNOWN]
