"""raftlog: a replicated commit log that coordinates itself.

The ground floor is here: the vocabulary (`model`, `errors`, `config`, `ports`, `record_batch`, `wire`), the carrier of
the data plane (`http2/`) and the client library (`client/`). None of it imports `metadata`, `partitions`, `http_api`,
`spark_source` or `jepsen_like`. The top floor puts everything together: `broker/` and `cli/`.

Importing this package loads nothing heavy; `Producer` and `Consumer` are loaded when first named.
"""

from __future__ import annotations

from .version import __version__

__all__ = ["__version__"]
