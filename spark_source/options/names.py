"""The names of options: case-insensitive, with aliases; unknown names are refused. Pure.

Spark passes option names in lower case, and a job written for the Kafka connector uses Kafka's names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raftlog.errors import InvalidRequest

BOOTSTRAP = "raftlog.bootstrap.servers"
TLS_AUTHORITY = "raftlog.tls.authority"


class OptionNames:
    """The option names of one kind of query."""

    def __init__(self, known: Iterable[str], aliases: Mapping[str, str], advice: Mapping[str, str]) -> None:
        """`aliases`: another name → the name. `advice`: a name in lower case that is commonly used and refused → the
        reason."""
        self._aliases = aliases
        self._advice = advice
        self._by_lower = {name.lower(): name for name in known}
        self._by_lower |= {alias.lower(): name for alias, name in aliases.items()}

    def canonical(self, options: Mapping[str, str]) -> dict[str, str]:
        """Return the options by their canonical names. Raises `InvalidRequest` (`invalid_config`)."""
        given: dict[str, str] = {}
        for option in options:
            name = self._by_lower.get(option.lower())
            if name is None:
                raise self._unknown(option)
            value = str(options[option]).strip()
            if given.get(name, value) != value:
                raise wrong(f"option {name} is given twice, with different values: once by another name of it")
            given[name] = value
        empty = [name for name, value in given.items() if not value]
        if empty:
            raise wrong(f"option {empty[0]} is empty")
        return given

    def _unknown(self, option: str) -> InvalidRequest:
        lowered = option.lower()
        if lowered in self._advice:
            return wrong(f"option {option} is not known: {self._advice[lowered]}")
        if lowered.startswith("kafka."):
            passed = ", ".join(sorted(alias for alias in self._aliases if alias.startswith("kafka.")))
            return wrong(f"option {option} is not known: of Kafka's own settings, only {passed} are supported")
        return wrong(f"option {option} is not known; docs/spark.md lists those that are")


def bootstrap_of(given: Mapping[str, str]) -> str:
    """Return the bootstrap addresses. Raises `InvalidRequest` if they are missing."""
    if BOOTSTRAP not in given:
        raise wrong(f"option {BOOTSTRAP} is missing: API addresses, host:port, separated by commas")
    return given[BOOTSTRAP]


def wrong(detail: str) -> InvalidRequest:
    """Return the error for an option."""
    return InvalidRequest("invalid_config", detail)
