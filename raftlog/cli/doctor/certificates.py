"""The TLS files of a node, tested as the node tests them at its start, and their expiry."""

from __future__ import annotations

import os
import stat

from raftlog.broker.tls.expiry import DAY_SECONDS
from raftlog.broker.tls.files import load_tls_files
from raftlog.broker.tls.names import NodeNames
from raftlog.config import TlsConfig
from raftlog.errors import InvalidRequest
from raftlog.model import BrokerId

from .findings import Finding, ok, problem, warning

RENEW = (
    "make a new one (`raftlog tls create-certificate`, or your authority) and replace the file: no restart is needed"
)
SOON_DAYS = 14


def check_certificates(tls: TlsConfig, cluster_id: str, node_id: int, now: float) -> list[Finding]:
    """Return the findings about the files of `[tls]`, whose paths are absolute. `now`: seconds since 1970."""
    findings = [finding for name in ("key", "api_key") if (finding := _check_key(name, getattr(tls, name))) is not None]
    try:
        files = load_tls_files(tls, NodeNames(tls.node_name, cluster_id), BrokerId(node_id))
    except InvalidRequest as error:
        remedy = f"correct [tls] in node.toml, or {RENEW}"
        return [*findings, problem("certificates", error.detail.removeprefix("tls: "), remedy)]
    for lifetime in files.lifetimes:
        days = (lifetime.ends - now) / DAY_SECONDS
        shown = f"{lifetime.what} is valid for {days:.0f} more days"
        told = lifetime.line(now)
        if days <= 0:
            findings.append(problem("certificates", f"{lifetime.what} has expired", RENEW))
        elif told is not None or days < min(SOON_DAYS, (lifetime.ends - lifetime.begins) / DAY_SECONDS / 3):
            findings.append(warning("certificates", shown, RENEW))
        else:
            findings.append(ok("certificates", shown))
    return findings


def _check_key(name: str, path: str) -> Finding | None:
    if not path:
        return None
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return None  # the test of the files says so
    if not mode & 0o077:
        return None
    told = f"others can read or change tls.{name} {path} (mode {mode:04o})"
    return problem("certificates", told, f"run `chmod 600 {path}`, and replace the key if others may have read it")
