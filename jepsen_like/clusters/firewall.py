"""Cut links between nodes in network namespaces: each namespace drops what comes from whom it must not hear.

A cut `n1>n2` is a rule in n2's namespace, on its way in, so n1 notices nothing but silence. A namespace's whole set of
rules is replaced in one step. Each rule counts what it dropped: a cut that dropped nothing proves nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from .commands import CommandFailed, in_thread, run, to_the_end
from .links import ends

TABLE = "raftlog_faults"


@dataclass(frozen=True, slots=True)
class Firewall:
    """Of one cluster. `namespaces` and `addresses` are by node; nothing outside of those namespaces is touched."""

    namespaces: Mapping[str, str]
    addresses: Mapping[str, str]

    async def cut(self, names: Iterable[str]) -> None:
        """See `Links`."""
        unheard: dict[str, list[str]] = {node: [] for node in self.namespaces}
        for name in sorted(set(names)):
            unheard[ends(name)[1]].append(name)
        scripts = {node: rules({name: self.addresses[ends(name)[0]] for name in unheard[node]}) for node in unheard}
        await to_the_end(self._load(scripts))

    async def _load(self, scripts: Mapping[str, str]) -> None:
        loads = (asyncio.to_thread(self._nft, node, "-f", "-", given=script) for node, script in scripts.items())
        for result in await asyncio.gather(*loads, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    async def stopped(self) -> dict[str, int]:
        """See `Links`: packets."""
        counted: dict[str, int] = {}
        for node in self.namespaces:
            counted |= packets(await in_thread(self._nft, node, "-j", "list", "table", "inet", TABLE))
        return counted

    async def heal(self) -> None:
        """See `Links`."""
        await self.cut(())

    async def close(self) -> None:
        """The rules go with the namespaces."""

    def _nft(self, node: str, *arguments: str, given: str | None = None) -> str:
        return nft(self.namespaces[node], *arguments, given=given)


def nft(namespace: str, *arguments: str, given: str | None = None) -> str:
    """In this namespace, whatever the calling process is in. Raises `CommandFailed`. Blocks."""
    return run("nsenter", f"--net=/run/netns/{namespace}", "--", "nft", *arguments, given=given)


def rules(cut: Mapping[str, str]) -> str:
    """What nft loads as one: the table anew, with a counting rule for each link (its name → the sender's address)."""
    lines = [f"table inet {TABLE} {{ }}", f"delete table inet {TABLE}", f"table inet {TABLE} {{", "  chain input {"]
    lines.append("    type filter hook input priority 0; policy accept;")
    lines += [f'    ip saddr {address} counter drop comment "{name}"' for name, address in cut.items()]
    return "\n".join([*lines, "  }", "}", ""])


def packets(listing: str) -> dict[str, int]:
    """How many each of our rules dropped, by its link's name, from nft's JSON. Raises `CommandFailed`."""
    try:
        entries = msgspec.json.decode(listing, type=dict[str, Any])["nftables"]
        found = {}
        for rule in (entry["rule"] for entry in entries if "rule" in entry):
            counters = [part["counter"]["packets"] for part in rule["expr"] if "counter" in part]
            found[str(rule["comment"])] = sum(counters)
        return found
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise CommandFailed(f"nft listed what cannot be read: {error!r}") from None
