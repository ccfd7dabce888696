"""An identity provider: keys, signed access tokens, and the documents that it publishes."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey

ISSUER = "https://login.example.org/"
AUDIENCE = "raftlog"
NOW_MS = 1_700_000_000_000
NOW = NOW_MS // 1000

EVERY_ALGORITHM = ("none", "HS256", "HS512", "RS256", "RS512", "PS256", "ES256", "ES384", "Ed25519")


class IdentityProvider:
    """Signs whatever it is asked to."""

    def __init__(self) -> None:
        self.keys: dict[str, RSAKey | ECKey | OKPKey] = {
            "rsa": RSAKey.generate_key(2048, {"kid": "rsa"}),
            "ec": ECKey.generate_key("P-256", {"kid": "ec"}),
            "ed": OKPKey.generate_key("Ed25519", {"kid": "ed"}),
        }

    def published(self, *names: str) -> bytes:
        """The JWK Set of these keys; of all, if none is named."""
        return json.dumps({"keys": [self.keys[name].as_dict(private=False) for name in names or self.keys]}).encode()

    def token(
        self,
        key: RSAKey | ECKey | OKPKey | OctKey | str = "ec",
        algorithm: str = "ES256",
        header: Mapping[str, Any] | None = None,
        **claims: Any,
    ) -> str:
        """An access token of `alice`, with these claims instead; a claim that is None is left out."""
        if isinstance(key, str):
            header = {"kid": key, **(header or {})}
            key = self.keys[key]
        found = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW + 300, "iat": NOW, **claims}
        payload = json.dumps({name: value for name, value in found.items() if value is not None})
        return signed(key, algorithm, payload.encode(), header)


def signed(
    key: RSAKey | ECKey | OKPKey | OctKey, algorithm: str, payload: bytes, header: Mapping[str, Any] | None = None
) -> str:
    """A JWS of any payload."""
    registry = jws.JWSRegistry(algorithms=EVERY_ALGORITHM, strict_check_header=False)
    protected = {key: value for key, value in {"alg": algorithm, **(header or {})}.items() if value is not None}
    return jws.serialize_compact(protected, payload, key, registry=registry)


def unsigned(header: bytes, payload: bytes, signature: bytes = b"") -> str:
    """A JWS with any three parts."""
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in (header, payload, signature))
