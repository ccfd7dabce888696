"""Refused credentials that must look alike from outside, and planted shortcuts that tell them apart.

Names have the same length, and so have passwords and tokens, so that only what the node knows of them differs.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pytest

from metadata.records.security import ScramMaterial
from raftlog.broker.security.authentication import authenticator
from raftlog.broker.security.authentication.tokens import digest_of, id_of, new_token
from raftlog.broker.security.passwords.checks import PasswordChecks, Stored
from raftlog.broker.security.passwords.scram import (
    SCRAM_ITERATIONS,
    SCRAM_SALT_BYTES,
    ScramRefused,
    ScramServer,
    material_of,
)
from raftlog.broker.security.unauthenticated import Cause
from raftlog.errors import InvalidRequest, RaftlogError
from raftlog.ports import Answer
from raftlog.security.presented import Presented
from raftlog.security.secrets import Secret
from tests.support.security.authenticated_world import AuthenticatedWorld, basic, bearer

WRONG = "wrong horse"
KNOWN, UNKNOWN, DISABLED, REMOVED = "wrong password", "unknown name", "user without a password", "removed user"
NAMES = {KNOWN: "alice", UNKNOWN: "mallo", DISABLED: "carol", REMOVED: "david"}

Refused: TypeAlias = Callable[[], Presented]
"""Makes a credential that is refused, of fresh secrets where they are random."""


def passwords_of(world: AuthenticatedWorld, **password: str) -> Mapping[str, Refused]:
    """Put users into a world; return kind → its credential. `password` is the argument of `put_user`."""
    for kind in (KNOWN, REMOVED):
        world.put_user(NAMES[kind], **password)
    world.put_user(NAMES[DISABLED])
    world.remove_user(NAMES[REMOVED])

    def refused(name: str) -> Refused:
        return lambda: basic(name, WRONG)

    return {kind: refused(name) for kind, name in NAMES.items()}


WRONG_SECRET, UNKNOWN_ID, REVOKED = "wrong secret", "unknown id", "revoked token"


def tokens_of(world: AuthenticatedWorld) -> Mapping[str, Refused]:
    """Put tokens into a world; return kind → its credential."""
    world.put_user("alice")
    kept, revoked = world.put_token("alice"), world.put_token("alice")
    world.remove_token(revoked)
    unknown = new_token()  # One for all, like the others: fresh ids would scatter the credentials in memory.

    def with_new_secret(token_id: str) -> Presented:
        text = new_token().text.reveal()
        return bearer(text.replace(id_of(Secret(text)), token_id))

    return {
        WRONG_SECRET: lambda: with_new_secret(kept.token_id),
        UNKNOWN_ID: lambda: with_new_secret(unknown.token_id),
        REVOKED: lambda: with_new_secret(revoked.token_id),
    }


# --- SCRAM ---

MATERIAL = material_of(b"correct horse", b"s" * SCRAM_SALT_BYTES, SCRAM_ITERATIONS)
SCRAM_NAMES = {KNOWN: "alice", UNKNOWN: "mallo"}


def material(name: str) -> ScramMaterial | None:
    return MATERIAL if name == SCRAM_NAMES[KNOWN] else None


def scram_exchange(name: str, server: type[ScramServer] = ScramServer) -> Callable[[], None]:
    """Return the server's part of an exchange whose proof is wrong, with the client's messages made before."""
    scram = server(material, "n" * 24, b"k" * 32)
    first = f"n,,n={name},r=abc".encode()
    last = f"c=biws,r=abc{'n' * 24},p={base64.b64encode(bytes(64)).decode()}".encode()

    def run() -> None:
        scram.first(first)
        with pytest.raises(ScramRefused) as caught:
            scram.final(last)
        assert caught.value.answer == b"e=invalid-proof"

    return run


# --- Planted bugs ---


class ShortcutChecks(PasswordChecks):
    """A pool that computes nothing for a name that it does not know."""

    def check(self, name: str, password: Secret, stored: Stored | None, host: str, answer: Answer[bool]) -> None:
        if stored is None:
            answer(False)
        else:
            super().check(name, password, stored, host, answer)


class ShortcutScram(ScramServer):
    """A server that looks at no proof of a name that it does not know."""

    def final(self, message: bytes) -> bytes:
        if material(self.claimed) is None:
            raise ScramRefused("invalid-proof", Cause.UNKNOWN_USER, claimed=self.claimed)
        return super().final(message)


def plant_a_lookup_by_token_id(world: AuthenticatedWorld, patch: pytest.MonkeyPatch) -> None:
    """Let the authenticator refuse a token whose id it does not know before it computes the digest."""

    def id_of_known(text: Secret) -> str:
        found = id_of(text)
        if all(token.token_id != found for token in world.table.tokens_of("alice")):
            raise InvalidRequest("invalid_request", "unknown")
        return found

    patch.setattr(authenticator, "id_of", id_of_known)


def plant_a_stretched_digest_of_known_ids(world: AuthenticatedWorld, patch: pytest.MonkeyPatch) -> None:
    """Let the authenticator compute a slower digest for a token whose id it knows."""

    def digest_of_known(text: Secret) -> bytes:
        if any(token.token_id == id_of(text) for token in world.table.tokens_of("alice")):
            hashlib.pbkdf2_hmac("sha256", text.reveal().encode(), b"salt", 10)
        return digest_of(text)

    patch.setattr(authenticator, "digest_of", digest_of_known)


def answers_of(world: AuthenticatedWorld, presented: Presented) -> Any:
    """Let a world refuse a credential; return what its client sees."""
    answer = world.answer(presented)
    assert isinstance(answer, RaftlogError), answer
    return type(answer), answer.code, answer.detail
