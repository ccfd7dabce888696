"""Passwords: their preparation and argon2id.

**Preparation.** A password is compared in the form that the profile OpaqueString of RFC 8265 (section 4.2) gives it:
every kind of space becomes U+0020, the text is normalized to NFC, and characters that are invisible or that Unicode
does not define are refused. This is the successor of SASLprep (RFC 4013), which normalizes to NFKC: that would change
characters such as `²` or `ﬁ`, whereas Kafka's clients do not normalize at all. Keyboards produce NFC, so with
OpaqueString those clients and ours agree.

**argon2id** (RFC 9106) with the second recommended option, scaled from 64 MiB in four lanes to 32 MiB in one: some 50
ms of one core, since two threads of a node check passwords beside the log's work. The result is a PHC string.

The functions with argon2 in them block for that time: they run on a worker.
"""

from __future__ import annotations

import base64
import secrets
import unicodedata
from collections.abc import Callable
from typing import TypeAlias

import argon2
import msgspec
from argon2 import exceptions, low_level

from metadata.records.security import ScramMaterial
from raftlog.errors import InvalidRequest, InvariantViolation, ResourceShortage
from raftlog.security.secrets import Secret

from .scram import SCRAM_ITERATIONS, SCRAM_SALT_BYTES, material_of

TIME_COST = 3
"""Passes over the memory, as RFC 9106 recommends."""
MEMORY_KIB = 32 * 1024
LANES = 1
SALT_BYTES = 16
TAG_BYTES = 32

MAX_MEMORY_KIB = 256 * 1024
MAX_TIME_COST = 16
MAX_LANES = 8
"""Bounds of a stored hash: the cost of a check stays bounded, whatever a record says."""

MIN_PASSWORD = 8
"""Least number of characters of a new password (NIST SP 800-63B section 5.1.1.2)."""
MAX_PASSWORD_BYTES = 1024
"""Most bytes of a password in UTF-8, so that its hash costs the same as that of any other."""

_NO_MEMORY = low_level.error_to_str(-22)
"""The library's text for a failed allocation (`ARGON2_MEMORY_ALLOCATION_ERROR`)."""

RandomBytes: TypeAlias = Callable[[int], bytes]
"""A source of secure random bytes."""

_VISIBLE = frozenset("LMNPS")
"""First letters of the general categories whose characters a password may have, besides spaces."""
_IGNORABLE = (
    (0x034F, 0x034F), (0x115F, 0x1160), (0x1100, 0x11FF), (0xA960, 0xA97C), (0xD7B0, 0xD7FB), (0x17B4, 0x17B5),
    (0x180B, 0x180F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0xE0100, 0xE01EF),
)  # fmt: skip
"""Letters and marks that RFC 8264 disallows because they are invisible (Default_Ignorable_Code_Point) or parts of a
syllable (Old_Hangul_Jamo)."""


class PasswordMaterial(msgspec.Struct, frozen=True):
    """The stored forms of a password. They are no secrets as passwords are, but help an attacker to guess."""

    argon2: str
    """The PHC string."""
    scram: ScramMaterial

    def __repr__(self) -> str:
        return "PasswordMaterial(***)"


def prepared(password: Secret) -> bytes:
    """Return the form in which a password is hashed, in UTF-8.

    Raises `InvalidRequest` for a password that no user can have; the text does not contain it.
    """
    text = password.reveal()
    if len(text) > MAX_PASSWORD_BYTES:
        raise _refusal(f"a password has at most {MAX_PASSWORD_BYTES} bytes in UTF-8")
    spaced = "".join(" " if unicodedata.category(character) == "Zs" else character for character in text)
    normal = unicodedata.normalize("NFC", spaced)
    for position, character in enumerate(normal):
        if character != " " and not _is_visible(character):
            raise _refusal(f"character {position + 1} of the password is a control, invisible or undefined character")
    encoded = normal.encode()
    if not 1 <= len(encoded) <= MAX_PASSWORD_BYTES:
        raise _refusal(f"a password has 1 to {MAX_PASSWORD_BYTES} bytes in UTF-8")
    return encoded


def new_material(password: Secret, random_bytes: RandomBytes = secrets.token_bytes) -> PasswordMaterial:
    """Return what the quorum stores of a new password. Blocks for some 60 ms.

    Raises `InvalidRequest` for a password that is too short, too long or has characters that it must not have, and
    `ResourceShortage` if there is no memory for the hash.
    """
    secret = prepared(password)
    if len(secret.decode()) < MIN_PASSWORD:
        raise _refusal(f"a password has at least {MIN_PASSWORD} characters")
    try:
        phc = low_level.hash_secret(
            secret, random_bytes(SALT_BYTES), TIME_COST, MEMORY_KIB, LANES, TAG_BYTES, low_level.Type.ID
        )
    except exceptions.HashingError as error:
        raise ResourceShortage(f"the password could not be hashed: {error}") from None
    return PasswordMaterial(phc.decode(), material_of(secret, random_bytes(SCRAM_SALT_BYTES), SCRAM_ITERATIONS))


def matches(phc: str, secret: bytes) -> bool:
    """Return whether a prepared password belongs to a PHC string. Blocks for some 50 ms.

    Raises `InvariantViolation` for a string that raftlog does not make, and `ResourceShortage` if there is no memory
    for the hash.
    """
    try:
        return low_level.verify_secret(checked_phc(phc).encode(), secret, low_level.Type.ID)
    except exceptions.VerifyMismatchError:
        return False
    except exceptions.VerificationError as error:
        if str(error) == _NO_MEMORY:
            raise ResourceShortage(f"the password could not be checked: {error}") from None
        raise InvariantViolation(f"a stored password hash cannot be used: {error}") from None


def checked_phc(phc: str) -> str:
    """Return a PHC string whose check has a bounded cost. Raises `InvariantViolation`, without the string."""
    try:
        found = argon2.extract_parameters(phc)
    except (exceptions.InvalidHashError, ValueError, LookupError):
        raise InvariantViolation("a stored password hash is not a PHC string of argon2") from None
    if found.type is not low_level.Type.ID:
        raise InvariantViolation("a stored password hash is not one of argon2id")
    if not (
        found.memory_cost <= MAX_MEMORY_KIB and found.time_cost <= MAX_TIME_COST and found.parallelism <= MAX_LANES
    ):
        raise InvariantViolation("a stored password hash costs more to check than raftlog allows")
    return phc


def unmatched_phc(random_bytes: RandomBytes = secrets.token_bytes) -> str:
    """Return a PHC string that no password matches and whose check costs what a user's does.

    It is made without a hash: its tag is random.
    """
    salt, tag = (_base64(random_bytes(length)) for length in (SALT_BYTES, TAG_BYTES))
    return f"$argon2id$v=19$m={MEMORY_KIB},t={TIME_COST},p={LANES}${salt}${tag}"


def _is_visible(character: str) -> bool:
    if unicodedata.category(character)[0] not in _VISIBLE:
        return False
    return not any(first <= ord(character) <= last for first, last in _IGNORABLE)


def _base64(some: bytes) -> str:
    return base64.b64encode(some).decode().rstrip("=")


def _refusal(detail: str) -> InvalidRequest:
    return InvalidRequest("invalid_request", detail)
