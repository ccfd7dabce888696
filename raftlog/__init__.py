"""raftlog: a replicated commit log with its own coordination.

This folder holds the foundation: the shared vocabulary (`model`, `errors`, `config`, `ports`, `records/`, `wire`), the
transport of the data plane (`http2/`) and the client library (`client/`). None of it imports `metadata`, `partitions`,
`http_api`, `spark_source` or `jepsen_like`. It also holds what assembles all of them: `broker/` and `cli/`.

Importing this package loads nothing heavy; `Producer`, `Consumer`, `Admin`, `Credentials` and `commit_together` are
loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from raftlog.client.transactions.transaction import commit_together

    from .client.admin import Admin
    from .client.consumer import Consumer
    from .client.credentials import Credentials
    from .client.producer import Producer

__all__ = ["Admin", "Consumer", "Credentials", "Producer", "__version__", "commit_together"]


def __getattr__(name: str) -> Any:
    """Return a name of the client, which is loaded on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import client

    return getattr(client, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
