"""Recovery of the journal after any kind of stop.

Records are written in groups, with one fsync per group, and the next group only after that fsync. So only the last
group can be torn, and nothing in it was promised to any peer. Everything fsynced earlier must be intact: a node that
lost some of it could vote twice or forget what it acknowledged, so it does not start (S9).

The decision about the first byte that is not a valid record is a table over three conditions:

| first record valid | proven to have been fsynced | looks unwritten | verdict |
|---|---|---|---|
| no  | any | any | refuse: files get their name only after the header is durable |
| yes | yes | any | refuse: fsynced bytes are damaged |
| yes | no  | yes | cut: a group was torn |
| yes | no  | no  | refuse: the record was written in full and has been corrupted since |

*Proven*: by a later record of the same file, or by the journal's witness (`witness.py`), which covers the end too. If
every record is valid but the file is shorter than the witness says, its end is missing: refuse.

*Looks unwritten*: the file ends inside the record, or the record holds a run of zeros that no valid record has, or it
ends in zeros from a sector boundary on: what a file system leaves if a write did not arrive. A tenth of a second
after the last group its witness is durable. For a power loss before that, only this heuristic distinguishes a torn
write from bit rot.

A valid record whose sequence number or index does not follow the previous one is damage in any case.
"""

from __future__ import annotations

import enum

import msgspec

from raftlog.errors import DiskDamaged

from . import format as fmt
from .format import Header, Kind, Record

SECTOR_BYTES = 512
"""Bytes that a disk writes atomically."""


class Verdict(enum.Enum):
    """The action taken at the first byte that is not a valid record."""

    CUT = "cut"
    REFUSE = "refuse"


DECISIONS: dict[tuple[bool, bool, bool], Verdict] = {
    # (first record valid, witnessed as synced, looks unwritten)
    (False, False, False): Verdict.REFUSE,
    (False, False, True): Verdict.REFUSE,
    (False, True, False): Verdict.REFUSE,
    (False, True, True): Verdict.REFUSE,
    (True, True, False): Verdict.REFUSE,
    (True, True, True): Verdict.REFUSE,
    (True, False, True): Verdict.CUT,
    (True, False, False): Verdict.REFUSE,
}


class Recovered(msgspec.Struct):
    """The state read from a journal file."""

    header: Header
    entries: list[tuple[bytes, int, int]]
    """(command, index, term) of each entry, without gaps; the first is the base, whose command is empty."""
    term: int
    vote: int
    end: int
    """The length of the valid part of the file, in bytes; the rest is to be cut."""
    cut_bytes: int
    records: int


def recover(name: str, content: bytes, *, witnessed: int = 0) -> Recovered:
    """Read a whole journal file, of which `witnessed` bytes are known to have been fsynced.

    Raises `DiskDamaged` if the file cannot be trusted, and `InvariantViolation` if another version wrote it.
    """
    state: Recovered | None = None
    position = 0
    while position < len(content) or state is None:
        record = fmt.decode(content, position)
        if record is None:
            cut_or_refuse(name, content, position, first_is_valid=state is not None, witnessed=witnessed)
            assert state is not None
            state.cut_bytes = len(content) - position
            break
        if state is None:
            state = _begin(name, record)
        else:
            _take(name, state, record)
        position = record.end
        state.end = position
        state.records += 1
    if state.end < witnessed:
        raise DiskDamaged(f"{name} has lost its end: {state.end} of {witnessed} fsynced bytes are left")
    return state


def cut_or_refuse(name: str, content: bytes, position: int, *, first_is_valid: bool, witnessed: int = 0) -> None:
    """Decide about the invalid bytes at `position`. Returns if they may be cut; otherwise raises `DiskDamaged`."""
    witness = fmt.witness_after(content, position)
    synced = witness is not None or position < witnessed
    unwritten = _looks_unwritten(content, position)
    if DECISIONS[first_is_valid, synced, unwritten] is Verdict.CUT:
        return
    why = (
        "its first record is damaged"
        if not first_is_valid
        else f"the record at byte {witness.position} proves that this was fsynced"
        if witness is not None
        else f"{witnessed} bytes were fsynced"
        if synced
        else "the record is complete, but corrupt"
    )
    raise DiskDamaged(f"{name} is damaged at byte {position} of {len(content)}: {why}")


def _looks_unwritten(content: bytes, position: int) -> bool:
    end = fmt.claimed_end(content, position)
    if end is None:
        if len(content) - position < fmt.HEAD_BYTES:
            return True
        end = len(content)
    if end > len(content) or fmt.UNWRITTEN in content[position:end]:
        return True
    boundary = end // SECTOR_BYTES * SECTOR_BYTES
    return position < boundary < end and not any(content[boundary:end])


def _begin(name: str, record: Record) -> Recovered:
    if record.kind is not Kind.HEADER or record.sequence != 0:
        raise DiskDamaged(f"{name} does not begin with a header")
    header = fmt.decode_header(record.payload)
    base = (b"", header.base_index, header.base_term)
    return Recovered(header, [base], header.term, header.vote, record.end, 0, 0)


def _take(name: str, state: Recovered, record: Record) -> None:
    where = f"{name} at byte {record.position}"
    if record.sequence != state.records:
        raise DiskDamaged(f"{where}: record {record.sequence} where {state.records} should be")
    if record.synced > record.position:
        raise DiskDamaged(f"{where}: claims {record.synced} synced bytes before it")
    entries = state.entries
    if record.kind is Kind.ENTRY:
        index, term, command = fmt.decode_entry(record.payload)
        if index != entries[-1][1] + 1 or not entries[-1][2] <= term <= state.term:
            last = f"{entries[-1][1]} of term {entries[-1][2]}"
            raise DiskDamaged(f"{where}: entry {index} of term {term} after {last} in term {state.term}")
        entries.append((command, index, term))
    elif record.kind is Kind.TRUNCATE:
        keep = fmt.decode_index(record.payload) - entries[0][1]
        if not 0 < keep < len(entries):
            raise DiskDamaged(f"{where}: truncates to {keep} of {len(entries)} entries")
        del entries[keep:]
    elif record.kind is Kind.STATE:
        term, vote = fmt.decode_state(record.payload)
        if term < state.term or (term == state.term and state.vote not in (fmt.NO_VOTE, vote)):
            raise DiskDamaged(f"{where}: term {term} vote {vote} after term {state.term} vote {state.vote}")
        state.term, state.vote = term, vote
    elif record.kind is not Kind.MARK:
        raise DiskDamaged(f"{where}: a second header")
