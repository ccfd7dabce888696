"""A cluster's own certificate authority, and the certificates that it signs, with the `cryptography` package.

Its own keys are on the elliptic curve P-256, hashes are SHA-256; an existing authority may have a key of another kind.
A node's certificate serves both ends of a connection. It
contains the node's name in the cluster (`raftlog/broker/tls/names.py`) and the hosts by which clients reach it. A
user's serves a client only, and contains the user's name
(`raftlog/broker/security/authentication/client_names.py`). The authority may sign no further authorities.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from typing import TypeAlias

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from raftlog.errors import InvalidRequest

BACKDATED = datetime.timedelta(minutes=5)
"""Certificates are backdated, because clocks differ a little: otherwise a new one would not be valid yet elsewhere."""

_SigningKey: TypeAlias = (
    ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey
)


def create_authority(name: str, days: float, now: datetime.datetime) -> tuple[bytes, bytes]:
    """Return certificate and key in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _builder(subject, subject, key, days, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pem(certificate, key)


def create_certificate(
    authority: tuple[bytes, bytes], names: Sequence[str], days: float, now: datetime.datetime, *, server: bool = True
) -> tuple[bytes, bytes]:
    """Return certificate and key in PEM, signed by the authority with the given certificate and key.

    `names` are in OpenSSL's notation: `URI:...`, `DNS:...`, `IP:...`. `server`: whether it is for a node, which is a
    server as well, or for a client alone. Raises `InvalidRequest`.
    """
    issuer, signing = _authority(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    common = "raftlog node" if server else "raftlog user"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if server else [])]
    certificate = (
        _builder(subject, issuer.subject, key, days, now)
        .add_extension(x509.SubjectAlternativeName([_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(_key_identifier(issuer), critical=False)
        .sign(signing, _hash_for(signing))
    )
    return _pem(certificate, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float, now: datetime.datetime
) -> x509.CertificateBuilder:
    ends = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, ends) - BACKDATED)
        .not_valid_after(ends)
    )


def _authority(authority: tuple[bytes, bytes]) -> tuple[x509.Certificate, _SigningKey]:
    certificate, key = authority
    try:
        issuer = x509.load_pem_x509_certificate(certificate)
        signing = serialization.load_pem_private_key(key, password=None)
        is_authority = any(isinstance(one.value, x509.BasicConstraints) and one.value.ca for one in issuer.extensions)
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        raise InvalidRequest(
            "invalid_request", f"these are not the certificate and key of an authority: {error}"
        ) from None
    if not isinstance(signing, _SigningKey):
        kinds = "an elliptic curve, RSA, Ed25519 or Ed448"
        raise InvalidRequest("invalid_request", f"the authority's key cannot sign certificates: it must be of {kinds}")
    if signing.public_key() != issuer.public_key():
        raise InvalidRequest("invalid_request", "the key is not that of the authority's certificate")
    if not is_authority:
        told = (
            "the certificate is not that of an authority (with `CA:TRUE`), so peers would accept nothing that it signs"
        )
        raise InvalidRequest("invalid_request", told)
    return issuer, signing


def _key_identifier(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """Return the identifier that the issuer has given its key: some derive it otherwise than by SHA-1 (RFC 7093)."""
    try:
        own = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except x509.ExtensionNotFound:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key())  # type: ignore[arg-type]
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own.value)


def _hash_for(key: _SigningKey) -> hashes.SHA256 | None:
    """Return the hash of a signature; None: that of the kind of key (RFC 8410)."""
    return None if isinstance(key, ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey) else hashes.SHA256()


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign,
        key_cert_sign=sign,
        crl_sign=sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.GeneralName:
    kind, _, value = text.partition(":")
    try:
        if kind == "URI":
            return x509.UniformResourceIdentifier(value)
        if kind == "DNS":
            return x509.DNSName(value)
        if kind == "IP":
            return x509.IPAddress(ipaddress.ip_address(value))
    except ValueError as error:
        raise InvalidRequest("invalid_request", f"{text!r} cannot be a name in a certificate: {error}") from None
    raise InvalidRequest("invalid_request", f"{text!r} is not a valid name: use URI:..., DNS:... or IP:...")


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> tuple[bytes, bytes]:
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return certificate.public_bytes(encoding), private
