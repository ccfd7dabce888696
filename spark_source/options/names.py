"""The names of options: in any case, by their other names, and what is not known refused. Pure.

Spark gives option names in lower case, and a job that comes from the Kafka connector brings Kafka's names along.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from raftlog.errors import InvalidRequest

BOOTSTRAP = "raftlog.bootstrap.servers"
TLS_AUTHORITY = "raftlog.tls.authority"


class OptionNames:
    """Those of one kind of query."""

    def __init__(self, known: Iterable[str], aliases: Mapping[str, str], advice: Mapping[str, str]) -> None:
        """`aliases`: another name → the name. `advice`: a name in lower case that people bring along and that is
        refused → why."""
        self._aliases = aliases
        self._advice = advice
        self._by_lower = {name.lower(): name for name in known}
        self._by_lower |= {alias.lower(): name for alias, name in aliases.items()}

    def canonical(self, options: Mapping[str, str]) -> dict[str, str]:
        """By their names here. Raises `InvalidRequest` (`invalid_config`)."""
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
            return wrong(f"option {option} is not known: of Kafka's own settings only {passed} mean something here")
        return wrong(f"option {option} is not known; docs/spark.md lists those that are")


def bootstrap_of(given: Mapping[str, str]) -> str:
    """The addresses. Raises `InvalidRequest` where they are missing."""
    if BOOTSTRAP not in given:
        raise wrong(f"option {BOOTSTRAP} is missing: API addresses, host:port, separated by commas")
    return given[BOOTSTRAP]


def wrong(detail: str) -> InvalidRequest:
    """What to raise for an option."""
    return InvalidRequest("invalid_config", detail)
