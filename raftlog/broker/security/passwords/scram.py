"""The server's side of SCRAM (RFC 5802, RFC 7677), without channel binding. A pure core.

The mechanism is SCRAM-SHA-512 as Kafka uses it (KIP-84); the functions take the digest's name, so that the RFCs' own
examples of SHA-1 and SHA-256 are tests of this code. The server stores no password: with `StoredKey` it verifies the
client's proof, with `ServerKey` it proves to the client that it knows them.

An unknown name gets a salt and an iteration count that depend on nothing but the name and a key of the process, so
that the exchange looks like that of a user and fails at the same point, with the same work.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import re
from collections.abc import Callable

from metadata.records.security import ScramMaterial
from raftlog.broker.security.unauthenticated import Cause, Unauthenticated
from raftlog.errors import InvalidRequest
from raftlog.security.principals import check_user_name

MECHANISM = "SCRAM-SHA-512"
DIGEST = "sha512"
SCRAM_ITERATIONS = 8192
"""PBKDF2 iterations of new material; Kafka's clients take 4,096 to 16,384."""
MIN_ITERATIONS = 4096
"""Least count that a client accepts (RFC 7677 section 4)."""
SCRAM_SALT_BYTES = 32
MAX_MESSAGE = 4096
"""Most bytes of a message of the client: a name of 255 characters, escaped, and a nonce fit."""
MAX_NONCE = 1024

_NONCE = re.compile(rf"[\x21-\x2b\x2d-\x7e]{{1,{MAX_NONCE}}}")
_NAME = re.compile(r"(?:[^\x00,=]|=2C|=3D)+")
"""`saslname` (RFC 5802 section 7): comma and equals sign are escaped."""
_EXTENSION = re.compile(r"[A-Za-z]+=[^\x00,]*")
"""`attr-val`; Kafka's own extensions have names of several letters (KIP-48)."""


class ScramRefused(Unauthenticated):
    """A failed exchange. `answer` is the server's last message, with an error value of RFC 5802 section 7."""

    def __init__(self, error: str, cause: Cause, why: str = "", claimed: str = "") -> None:
        super().__init__(cause, why, claimed)
        self.answer = f"e={error}".encode()


class _Phase(enum.Enum):
    NEW = enum.auto()
    ANSWERED = enum.auto()
    ENDED = enum.auto()


def material_of(password: bytes, salt: bytes, iterations: int, digest: str = DIGEST) -> ScramMaterial:
    """Return the stored material of a prepared password (RFC 5802 section 3). Blocks for some 8 ms."""
    salted = hashlib.pbkdf2_hmac(digest, password, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", digest)
    stored_key = hashlib.new(digest, client_key).digest()
    return ScramMaterial(iterations, salt, stored_key, hmac.digest(salted, b"Server Key", digest))


class ScramServer:
    """One exchange. A message out of turn, or after a failure, is refused."""

    def __init__(
        self,
        material: Callable[[str], ScramMaterial | None],
        nonce: str,
        unknown_key: bytes,
        digest: str = DIGEST,
    ) -> None:
        """`material` finds a user's; None: there is no such user, or it has no password. `nonce` is the server's part,
        random for each exchange. `unknown_key` is a secret random key, for names that are unknown: the same on all
        nodes and after a restart, since a salt that differs from node to node tells that a name is unknown."""
        assert _NONCE.fullmatch(nonce), "a nonce has printable characters only"
        self._material = material
        self._nonce = nonce
        self._unknown_key = unknown_key
        self._digest = digest
        self._phase = _Phase.NEW
        self._user = ""
        self._known = False
        self._stored: ScramMaterial | None = None
        self._header = b""
        """The client's GS2 header, which its last message repeats."""
        self._full_nonce = b""
        self._transcript = b""
        """The messages so far, as they enter `AuthMessage`."""

    @property
    def claimed(self) -> str:
        """The name that the client gave; empty before the first message."""
        return self._user

    def first(self, message: bytes) -> bytes:
        """Return the answer to client-first-message. Raises `ScramRefused`."""
        self._take_turn(_Phase.NEW)
        text = self._text_of(message)
        header, bare = self._without_header(text)
        name, nonce, *extensions = _attributes(bare)
        if name.startswith("m="):
            raise self._refusal("extensions-not-supported", "the client requires an extension")
        if not name.startswith("n=") or not _NAME.fullmatch(name[2:]):
            raise self._refusal("invalid-username-encoding", "the name is not encoded as a saslname")
        if not nonce.startswith("r=") or not _NONCE.fullmatch(nonce[2:]):
            raise self._refusal("other-error", "the client's nonce is malformed")
        if not all(_EXTENSION.fullmatch(extension) for extension in extensions):
            raise self._refusal("other-error", "an extension is malformed")
        self._take_user(_unescaped(name[2:]))
        authorized = header.split(",")[1]
        if authorized and authorized != f"a={name[2:]}":
            raise self._refusal("other-error", "the client asks to act as another user")
        assert self._stored is not None
        self._header = header.encode()
        self._full_nonce = (nonce[2:] + self._nonce).encode()
        salt = base64.b64encode(self._stored.salt)
        answer = b"r=%b,s=%b,i=%d" % (self._full_nonce, salt, self._stored.iterations)
        self._transcript = bare.encode() + b"," + answer
        self._phase = _Phase.ANSWERED
        return answer

    def final(self, message: bytes) -> bytes:
        """Return the answer to client-final-message: the client has proved that it knows the password.

        Raises `ScramRefused`.
        """
        self._take_turn(_Phase.ANSWERED)
        assert self._stored is not None
        unproved, separator, proof_text = self._text_of(message).rpartition(",p=")
        binding, nonce, *extensions = _attributes(unproved)
        if not separator or not binding.startswith("c=") or not nonce.startswith("r="):
            raise self._refusal("other-error", "client-final-message is malformed")
        if not all(_EXTENSION.fullmatch(extension) for extension in extensions):
            raise self._refusal("other-error", "an extension is malformed")
        if self._decoded(binding[2:]) != self._header:
            raise self._refusal("channel-bindings-dont-match", "the channel binding differs from the first message's")
        if not hmac.compare_digest(nonce[2:].encode(), self._full_nonce):
            raise self._refusal("other-error", "the nonce is not that of this exchange")
        transcript = self._transcript + b"," + unproved.encode()
        proof = self._decoded(proof_text)
        signature = hmac.digest(self._stored.stored_key, transcript, self._digest)
        if len(proof) != len(signature):
            raise self._refusal("invalid-proof", "the proof has another length than the digest", Cause.WRONG_PASSWORD)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        found = hashlib.new(self._digest, client_key).digest()
        if not hmac.compare_digest(found, self._stored.stored_key) or not self._known:
            raise self._refusal("invalid-proof", "", Cause.WRONG_PASSWORD if self._known else Cause.UNKNOWN_USER)
        return b"v=" + base64.b64encode(hmac.digest(self._stored.server_key, transcript, self._digest))

    # --- Inside ---

    def _take_turn(self, expected: _Phase) -> None:
        """Begin a message. Until it is answered the exchange counts as ended, so that a failure ends it."""
        phase, self._phase = self._phase, _Phase.ENDED
        if phase is not expected:
            raise self._refusal("other-error", "a message out of turn")

    def _text_of(self, message: bytes) -> str:
        if len(message) > MAX_MESSAGE:
            raise self._refusal("other-error", f"a message of {len(message)} bytes; {MAX_MESSAGE} are allowed")
        try:
            return message.decode()
        except UnicodeDecodeError:
            raise self._refusal("invalid-encoding", "a message that is not UTF-8") from None

    def _without_header(self, text: str) -> tuple[str, str]:
        """Return the GS2 header with its commas, and client-first-message-bare (RFC 5802 section 7)."""
        parts = text.split(",", 2)
        if len(parts) < 3 or (parts[1] and not (parts[1].startswith("a=") and _NAME.fullmatch(parts[1][2:]))):
            raise self._refusal("other-error", "client-first-message is malformed")
        if parts[0].startswith("p="):
            raise self._refusal("channel-binding-not-supported", "the client requires channel binding")
        if parts[0] not in ("n", "y"):
            raise self._refusal("other-error", "client-first-message is malformed")
        return f"{parts[0]},{parts[1]},", parts[2]

    def _take_user(self, name: str) -> None:
        # Made for every name, so that its cost tells nothing.
        seed = hmac.digest(self._unknown_key, name.encode(), "sha512")
        substitute = ScramMaterial(SCRAM_ITERATIONS, seed[:SCRAM_SALT_BYTES], seed, seed)
        try:
            self._user = check_user_name(name)
            found = self._material(name)
        except InvalidRequest:
            found = None  # No user has such a name.
        self._known = found is not None
        self._stored = found or substitute

    def _decoded(self, text: str) -> bytes:
        try:
            return base64.b64decode(text.encode(), validate=True)
        except (binascii.Error, ValueError):
            raise self._refusal("invalid-encoding", "a value that is not base64") from None

    def _refusal(self, error: str, why: str, cause: Cause = Cause.MALFORMED) -> ScramRefused:
        return ScramRefused(error, cause, f"{MECHANISM}: {why}" if why else MECHANISM, self._user)


def _attributes(text: str) -> list[str]:
    """Return the attributes of a message, at least two; those that are missing are empty."""
    parts = text.split(",")
    return parts if len(parts) > 1 else [*parts, ""]


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
