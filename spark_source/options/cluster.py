"""The options that say which cluster a query uses, and with which credential. Pure.

A credential is best given by a file or a variable of the processes that use it, on the driver and on the executors: the
options of a query are part of what Spark stores and sends. A literal token is redacted where Spark shows options, since
its name matches the default of `spark.redaction.regex`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raftlog.security.secrets import Secret

from . import values
from .names import BOOTSTRAP, TLS_AUTHORITY, bootstrap_of, wrong
from .values import parsed

TLS_CERTIFICATE, TLS_KEY = "raftlog.tls.certificate", "raftlog.tls.key"
TOKEN, TOKEN_FILE, TOKEN_VARIABLE = "raftlog.token", "raftlog.token.file", "raftlog.token.environment"
INSECURE = "raftlog.insecure.credentials"

CLUSTER = (BOOTSTRAP, TLS_AUTHORITY, TLS_CERTIFICATE, TLS_KEY, TOKEN, TOKEN_FILE, TOKEN_VARIABLE, INSECURE)
"""The names of these options."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """A cluster and the access to it. Paths and variables are those of each process that connects."""

    bootstrap: str
    tls_authority: str | None = None
    """A file of certificates."""
    tls_certificate: str | None = None
    tls_key: str | None = None
    token: Secret | None = field(default=None, repr=False, hash=False)
    token_file: str | None = None
    token_variable: str | None = None
    """Name of an environment variable."""
    insecure_credentials: bool = False


def cluster_of(given: Mapping[str, str]) -> ClusterOptions:
    """Return the cluster's options. Raises `InvalidRequest` (`invalid_config`), without a token in its text."""
    sources = [name for name in (TOKEN, TOKEN_FILE, TOKEN_VARIABLE) if name in given]
    if len(sources) > 1:
        raise wrong(f"options {' and '.join(sources)} name two tokens: give one")
    if TLS_KEY in given and TLS_CERTIFICATE not in given:
        raise wrong(f"option {TLS_KEY} needs {TLS_CERTIFICATE}")
    return ClusterOptions(
        bootstrap=bootstrap_of(given),
        tls_authority=given.get(TLS_AUTHORITY),
        tls_certificate=given.get(TLS_CERTIFICATE),
        tls_key=given.get(TLS_KEY),
        token=Secret(given[TOKEN]) if TOKEN in given else None,
        token_file=given.get(TOKEN_FILE),
        token_variable=given.get(TOKEN_VARIABLE),
        insecure_credentials=parsed(given, INSECURE, values.boolean, False),
    )
