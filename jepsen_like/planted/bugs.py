"""All planted bugs by name."""

from __future__ import annotations

from collections.abc import Mapping

from .client_bugs import CLIENT_BUGS
from .clock_bugs import CLOCK_BUGS_OF_CLUSTERS, CLOCK_BUGS_OF_GROUPS
from .consumer_bugs import CONSUMER_BUGS
from .disk_bugs import DISK_BUGS
from .door_bugs import DOOR_BUGS
from .election_bugs import ELECTION_BUGS
from .group_bugs import GROUP_BUGS
from .lives_bugs import LIVES_BUGS
from .log_bugs import LOG_BUGS
from .patches import Planted
from .producer_bugs import PRODUCER_BUGS
from .quorum_bugs import ENGINE_BUGS
from .replication_bugs import REPLICATION_BUGS
from .room_bugs import ROOM_BUGS
from .security_bugs import SECURITY_BUGS
from .shortage_bugs import SHORTAGE_BUGS
from .transaction_bugs import TRANSACTION_BUGS
from .voters_bugs import VOTERS_BUGS

OF_THE_QUORUM = (*ENGINE_BUGS, *VOTERS_BUGS, *DISK_BUGS, *CLIENT_BUGS)
OF_CLUSTERS = (
    *REPLICATION_BUGS,
    *ELECTION_BUGS,
    *LOG_BUGS,
    *ROOM_BUGS,
    *PRODUCER_BUGS,
    *SHORTAGE_BUGS,
    *CLOCK_BUGS_OF_CLUSTERS,
)
SIMULATED = (
    *OF_THE_QUORUM,
    *OF_CLUSTERS,
    *GROUP_BUGS,
    *CLOCK_BUGS_OF_GROUPS,
    *CONSUMER_BUGS,
    *SECURITY_BUGS,
    *TRANSACTION_BUGS,
    *LIVES_BUGS,
)

BUGS: Mapping[str, Planted] = {bug.name: bug for bug in SIMULATED}
PINNED: Mapping[str, Planted] = {bug.name: bug for bug in (*SIMULATED, *DOOR_BUGS)}
"""With those of a node's doors, which need no simulated cluster (`tests/simulation/test_doors.py`)."""
