"""A voter that forgot: it lacks entries that it had acknowledged, and nothing on its own disk shows it.

The journal and its witness detect most such losses at start. They cannot if the whole folder went back in time (a
virtual machine's snapshot was restored, or a disk lied about its fsyncs); then only the leader knows. An append names
the disk that acknowledged the entry before it, and a voter that is on this disk and lacks the entry has forgotten it.

Such a voter no longer takes part: it grants no votes, does not campaign, and flags its acknowledgements, which are
then not counted. It follows like an observer. The file `quorum/forgotten` makes this survive restarts; it exists for
as long as the folder does, and a newly prepared folder has none. Its content is for people.
"""

from __future__ import annotations

from metadata.voters.identity import FOLDER
from raftlog.ports import Disk

PATH = f"{FOLDER}/forgotten"


class Forgotten:
    """The durable flag that this node forgot acknowledged entries."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.it_did = disk.exists(PATH)

    def note(self, index: int, last_index: int, leader: int, term: int) -> None:
        """Record that entry `index` was acknowledged to this leader in this term, but the log ends with `last_index`.

        Durable on return. If it raises `DiskFailed` or `DiskFull`, the node stops and sends nothing more.
        """
        if not self.it_did:
            self._disk.replace(
                PATH,
                b"This node acknowledged entry %d of the quorum's log to node %d in term %d, and its log ended with %d "
                b"later.\nIts disk lost what was fsynced.\n" % (index, leader, term, last_index),
            )
            self.it_did = True
