"""What a checker says of a history.

`valid` is None where the checker came to no end within its budget: that is *unknown*, a failure to check, and never a
pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """See the module. `anomalies` has every anomaly by its name, the allowed ones, too; `measured` is what is told
    and not judged. An anomaly that operations prove names them by their `index` in the history, under `proof`, beside
    whatever else it tells; what is found on disks and in logs has none."""

    valid: bool | None
    anomalies: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> dict[str, Any]:
        """As the command prints it."""
        return {"valid": "unknown" if self.valid is None else self.valid, "anomalies": dict(self.anomalies)}
