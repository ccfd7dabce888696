"""Bounds on the numbers that a peer may state in a proposal.

The image decides by comparing numbers, and nothing would be greater than one that is far beyond all others: after a
registration with the greatest possible start number no later start of that broker could register. The leader therefore
refuses proposals with numbers that no correct node reaches, before they enter the log.
"""

from __future__ import annotations

from metadata.commands.cluster import RegisterBroker
from metadata.commands.envelope import Command
from metadata.image.image import ClusterImage
from raftlog.errors import RemoteProtocolError

MAX_START_LEAP = 2**20
"""The most starts of a broker between two registrations: a million, one each second for twelve days."""
MAX_FIRST_START = 2**32
"""The greatest start number of a directory that this cluster does not know."""


def check_plausible(image: ClusterImage, command: Command) -> None:
    """Raise `RemoteProtocolError` for a proposal with a number that no correct node states at present."""
    if not isinstance(command, RegisterBroker):
        return
    known = image.brokers.get(command.broker_id)
    same = known is not None and known.directory_id == command.directory_id
    limit = known.start_number + MAX_START_LEAP if known is not None and same else MAX_FIRST_START
    if command.start_number > limit:
        raise RemoteProtocolError(
            f"broker {command.broker_id} registers start number {command.start_number}, but no broker reaches more "
            f"than {limit} at present: its starts.json is damaged, or another program sends in its name"
        )
