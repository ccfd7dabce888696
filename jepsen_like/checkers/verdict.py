"""The verdict of a checker on a history.

`valid` is None if the checker exhausted its budget: the verdict is *unknown*, a failure to check, and never a pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict.

    `anomalies` has every anomaly by its name, including the allowed ones; `measured` has values that are reported and
    not judged. An anomaly that operations prove names them by their `index` in the history, under `proof`; anomalies
    found on disks and in logs have no such proof.
    """

    valid: bool | None
    anomalies: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> dict[str, Any]:
        """The form in which the command prints it."""
        return {"valid": "unknown" if self.valid is None else self.valid, "anomalies": dict(self.anomalies)}
