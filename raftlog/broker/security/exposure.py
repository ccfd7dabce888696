"""The settings of a node that leave it open to others, in lines for its health and its log. Pure."""

from __future__ import annotations

from raftlog.config import NodeConfig


def exposure_problems(config: NodeConfig) -> list[str]:
    """Return a line for each setting that an operator should change."""
    lines = []
    if config.tls is not None and config.tls.migrating:
        lines.append(
            "tls.migrating is true, so everybody who reaches data.listen can act as a node: remove it when every node "
            "has [tls]"
        )
    if not config.exposed:
        return lines
    return [
        *lines,
        f"everybody who reaches {' or '.join(config.exposed.values())} can read, write and delete everything, because "
        'security.mode is "off" and security.insecure is true: set up security (docs/security.md), or keep untrusted '
        "machines away from these addresses",
    ]
