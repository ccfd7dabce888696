"""A voter that forgot: it lacks what it had acknowledged, and nothing on its own disk said so.

The journal and its witness notice most of it at the start. They cannot where the whole folder went back in time (a
snapshot of a virtual machine, a disk that lied about its fsyncs): then it is the leader who knows. An append names the
disk that acknowledged what comes before it, and a voter that is on this disk and lacks the entry has forgotten it.

It takes part no more: grants no vote, does not campaign, and its acknowledgements, which say so, are not counted. It
follows like an observer. `quorum/forgotten` makes that outlive restarts; it is there for as long as the folder is, and
a folder that was prepared anew has none. What is in it is for people.
"""

from __future__ import annotations

from metadata.voters.identity import FOLDER
from raftlog.ports import Disk

PATH = f"{FOLDER}/forgotten"


class Forgotten:
    """Whether this node forgot, durably."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.it_did = disk.exists(PATH)

    def note(self, index: int, last_index: int, leader: int, term: int) -> None:
        """Entry `index` was acknowledged to this leader in this term, and the log ends with `last_index`. Durable when
        this returns. Raises `DiskFailed`, `DiskFull`: the node stops, and says nothing more."""
        if not self.it_did:
            self._disk.replace(
                PATH,
                b"This node acknowledged entry %d of the quorum's log to node %d in term %d, and its log ended with %d "
                b"later.\nIts disk lost what was fsynced.\n" % (index, leader, term, last_index),
            )
            self.it_did = True
