"""Cut links between nodes in network namespaces: each namespace drops the packets of the senders that are cut off.

A cut `n1>n2` is a rule for incoming packets in n2's namespace, so n1 observes nothing but silence. The rules of a
namespace are replaced in one step. Each rule counts the packets that it dropped: a cut that dropped nothing proves
nothing.
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
    """The firewall of one cluster. `namespaces` and `addresses` are by node; nothing outside those namespaces is
    changed.
    """

    namespaces: Mapping[str, str]
    addresses: Mapping[str, str]

    async def cut(self, names: Iterable[str]) -> None:
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
        """Return the packets dropped by each cut."""
        counted: dict[str, int] = {}
        for node in self.namespaces:
            counted |= packets(await in_thread(self._nft, node, "-j", "list", "table", "inet", TABLE))
        return counted

    async def heal(self) -> None:
        await self.cut(())

    async def close(self) -> None:
        """Do nothing: the rules disappear with the namespaces."""

    def _nft(self, node: str, *arguments: str, given: str | None = None) -> str:
        return nft(self.namespaces[node], *arguments, given=given)


def nft(namespace: str, *arguments: str, given: str | None = None) -> str:
    """Run nft in this namespace. Raises `CommandFailed`. Blocks."""
    return run("nsenter", f"--net=/run/netns/{namespace}", "--", "nft", *arguments, given=given)


def rules(cut: Mapping[str, str]) -> str:
    """Return the script that replaces the table, with a counting rule for each link (name → the sender's address)."""
    lines = [f"table inet {TABLE} {{ }}", f"delete table inet {TABLE}", f"table inet {TABLE} {{", "  chain input {"]
    lines.append("    type filter hook input priority 0; policy accept;")
    lines += [f'    ip saddr {address} counter drop comment "{name}"' for name, address in cut.items()]
    return "\n".join([*lines, "  }", "}", ""])


def packets(listing: str) -> dict[str, int]:
    """Return the packets that each of our rules dropped, by link, from nft's JSON. Raises `CommandFailed`."""
    try:
        entries = msgspec.json.decode(listing, type=dict[str, Any])["nftables"]
        found = {}
        for rule in (entry["rule"] for entry in entries if "rule" in entry):
            counters = [part["counter"]["packets"] for part in rule["expr"] if "counter" in part]
            found[str(rule["comment"])] = sum(counters)
        return found
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise CommandFailed(f"the output of nft is unreadable: {error!r}") from None
