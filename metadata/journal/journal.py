"""The quorum's durable log: entries, term and vote in one append-only file, fsynced before anything is promised.

`append`, `truncate_from` and `set_hard_state` only stage records; `sync` writes everything staged with one `pwritev`
and one fsync. A group of records therefore costs one fsync whatever it holds. After a crash the file is a prefix of
what was staged, in order, and every prefix is a state that this node passed through.

Nothing is ever overwritten. A conflict is a TRUNCATE record; a new term is a STATE record. When the prefix of the log
is dropped, the rest goes to a new *generation* (`journal-<number>.log`): written under a temporary name, fsynced,
renamed, and the folder fsynced; only then is the old generation removed. There is always one complete file, and the
highest number is the current one.

The *witness* beside the journal records how much of the newest generation was fsynced, because a journal cannot show
by itself that its end is missing.

`configurations` holds the log's configurations by index: the one in effect at the base, then each entry that changes
it.

`entries[0]` is the base: the entry before the first that the log still has, known by index and term only. Index 1 of
term 0 is the base of an empty log.

After any failed call the journal refuses all further calls, because the state of the disk is no longer known. There
are two exceptions. If a `ResourceShortage` occurs before a new generation has its name, nothing was changed, and the
prefix can be dropped later. If a write raises a `ResourceShortage` (an fsync never does), the staged records stay
staged, none of them has been promised, and the next `sync` writes the same bytes to the same place.
"""

from __future__ import annotations

import contextlib
import re

from metadata.voters.configuration import Configuration, decode_configuration, decode_entry, encode_configuration
from metadata.voters.damage import advising
from metadata.voters.identity import FOLDER, QuorumIdentity
from raftlog.errors import (
    DiskDamaged,
    DiskFailed,
    InvalidRequest,
    InvariantViolation,
    RaftlogError,
    ResourceShortage,
)
from raftlog.ports import Buffer, Disk, File

from . import format as fmt
from .format import Header, Kind
from .recovery import Recovered, recover
from .witness import PATH as WITNESS_PATH
from .witness import Witness, Word, prepare_witness

FIRST_INDEX = 1
"""The index of the base of an empty log."""

_NAME = re.compile(r"journal-(\d{10})\.log")
_TEMPORARY = f"{FOLDER}/journal.tmp"


def generation_path(generation: int) -> str:
    """Return the path of a generation's file."""
    return f"{FOLDER}/journal-{generation:010d}.log"


def prepare_journal(disk: Disk, identity: QuorumIdentity) -> None:
    """Write the empty journal of a first start, durably. Raises `InvalidRequest` if the folder exists already.

    `raftlog server init` calls it before it writes `node.json`. Nothing else does, so that a lost journal never looks
    like a first start (S9).
    """
    if disk.exists(FOLDER):
        raise InvalidRequest("invalid_config", f"{FOLDER}/ exists already; it was not changed")
    disk.make_directory(FOLDER)
    disk.fsync_directory("")
    prepare_witness(disk)
    initial = Configuration.initial(identity.voters)
    content, _ = _generation(identity, [(b"", FIRST_INDEX, 0)], term=0, vote=fmt.NO_VOTE, configuration=initial)
    _write_generation(disk, 0, content).close()


class Journal:
    """The journal of one node. Single-threaded; calls block."""

    def __init__(self, disk: Disk, identity: QuorumIdentity) -> None:
        """Open and recover the journal.

        Raises `InvalidRequest` if it is missing or belongs to another node, `DiskDamaged` if it cannot be trusted,
        and `InvariantViolation` if another version wrote it.
        """
        self._disk = disk
        self._identity = identity
        generations = _generations(disk)
        if not generations:
            raise InvalidRequest(
                "invalid_config",
                "the quorum's journal is missing: the folder was never prepared, or the disk was lost. A voter without "
                "its journal could vote twice in one term, so it does not start",
            )
        self._generation = generations[-1]
        path = generation_path(self._generation)
        with advising(identity.node_id):
            recovered, self._witness = self._recover(path)
        _check_owner(path, recovered.header, identity)
        self.path = path
        """The path of the current generation."""
        self._file: File = disk.open(path)
        if recovered.cut_bytes:
            self._file.truncate(recovered.end)
        # A crashed process may have left bytes in the page cache only. They become durable before anything builds on
        # them.
        self._file.fsync()
        disk.fsync_directory(FOLDER)
        self._forget(generations[:-1])
        self._adopt(recovered)
        self._witness.say(Word(self._generation, self._end))

    def _recover(self, path: str) -> tuple[Recovered, Witness]:
        content = self._disk.read(path)
        if not self._disk.exists(WITNESS_PATH):
            recovered = recover(path, content)
            if recovered.header.version >= fmt.WITNESSED_SINCE:
                raise DiskDamaged(f"{WITNESS_PATH} is missing: nothing says how much of {path} was fsynced")
            prepare_witness(self._disk)
            return recovered, Witness(self._disk)
        witness = Witness(self._disk)
        generation, synced = witness.word
        if generation > self._generation:
            raise DiskDamaged(f"{generation_path(generation)} is missing, which was there once; {path} is older")
        return recover(path, content, witnessed=synced if generation == self._generation else 0), witness

    def _adopt(self, recovered: Recovered) -> None:
        self.entries: list[tuple[bytes, int, int]] = recovered.entries
        """(command, index, term) of each entry, without gaps; the first is the base."""
        self.term = recovered.term
        self.vote = recovered.vote
        self.cut_bytes = recovered.cut_bytes
        """Bytes that recovery cut: a group that was never promised."""
        self.configurations = self._configurations_of(
            self.entries, self._configuration_in(recovered.header.configuration)
        )
        """(index, configuration), in order; the first is in effect at the base."""
        self._end = recovered.end
        self._records = recovered.records
        self._staged: list[Buffer] = []
        self._staged_bytes = 0
        self._unwitnessed = True
        self._failed = ""

    # --- The log ---

    @property
    def node_id(self) -> int:
        """The id of the node that owns the journal."""
        return self._identity.node_id

    @property
    def base_index(self) -> int:
        """The index after which the log has its entries."""
        return self.entries[0][1]

    @property
    def last_index(self) -> int:
        return self.entries[-1][1]

    @property
    def last_term(self) -> int:
        """The term of the last entry."""
        return self.entries[-1][2]

    def term_at(self, index: int) -> int | None:
        """Return the term of the entry at `index`, or None if the log does not have it."""
        entries = self.entries
        position = index - entries[0][1]
        return entries[position][2] if 0 <= position < len(entries) else None

    @property
    def usable(self) -> bool:
        """Whether no call has failed permanently."""
        return not self._failed

    def append(self, command: bytes, index: int, term: int) -> None:
        """Stage the next entry."""
        if index != self.last_index + 1 or not self.last_term <= term <= self.term:
            last = f"{self.last_index} of term {self.last_term}"
            raise InvariantViolation(f"entry {index} of term {term} appended after {last} in term {self.term}")
        configuration = decode_entry(command)
        self._stage(Kind.ENTRY, fmt.encode_entry(index, term, command))
        self.entries.append((command, index, term))
        if configuration is not None:
            self.configurations.append((index, configuration))

    def truncate_from(self, index: int) -> None:
        """Stage the removal of the entries from `index` on."""
        if not self.base_index < index <= self.last_index:
            raise InvariantViolation(f"truncation from {index} of a log of {self.base_index} to {self.last_index}")
        self._stage(Kind.TRUNCATE, fmt.encode_index(index))
        del self.entries[index - self.base_index :]
        while self.configurations[-1][0] >= index:
            self.configurations.pop()

    def configuration_at(self, index: int) -> Configuration:
        """Return the configuration in effect at `index`."""
        return next(configuration for at, configuration in reversed(self.configurations) if at <= index)

    def set_hard_state(self, term: int, vote: int) -> None:
        """Stage term and vote. Within a term, a vote is given once."""
        if term < self.term or (term == self.term and self.vote not in (fmt.NO_VOTE, vote)):
            raise InvariantViolation(f"term {term} vote {vote} after term {self.term} vote {self.vote}")
        if (term, vote) != (self.term, self.vote):
            self._stage(Kind.STATE, fmt.encode_state(term, vote))
            self.term, self.vote = term, vote

    # --- Durability ---

    @property
    def dirty(self) -> bool:
        """Whether anything is staged."""
        return bool(self._staged)

    @property
    def unwitnessed(self) -> bool:
        """Whether the witness of the last group might not survive a power loss. A `mark` is due when the node is
        idle."""
        return self._unwitnessed

    @property
    def size_bytes(self) -> int:
        """The size of the file in bytes, including staged records."""
        return self._end + self._staged_bytes

    def sync(self) -> None:
        """Make everything staged durable, with one fsync, or none if nothing is staged.

        After a `ResourceShortage` the records are still staged: the caller retries.
        """
        if self._staged:
            self._write_staged()
            self._unwitnessed = True

    def mark(self) -> None:
        """Make the witness of the last group durable, with one fsync, or none if it is durable already."""
        self.sync()
        if self._unwitnessed:
            self._check_usable()
            try:
                self._witness.say(Word(self._generation, self._end))
                self._witness.sync()
            except ResourceShortage:
                raise  # The witness claims less than it could until the next `mark`.
            except RaftlogError as error:
                self._failed = str(error)
                raise
            self._unwitnessed = False

    def _stage(self, kind: Kind, payload: bytes) -> None:
        self._check_usable()
        record = fmt.encode(kind, payload, sequence=self._records, synced=self._end)
        self._staged += record
        self._staged_bytes += fmt.HEAD_BYTES + len(payload)
        self._records += 1

    def _write_staged(self) -> None:
        self._check_usable()
        try:
            self._file.pwritev([b"".join(self._staged)], self._end)
            self._file.fsync()
            self._witness.say(Word(self._generation, self._end + self._staged_bytes))
        except ResourceShortage:
            raise  # The next `sync` writes the same bytes, and any later ones, to the same place.
        except MemoryError:
            raise ResourceShortage("no memory to write the quorum's journal") from None
        except RaftlogError as error:
            self._failed = str(error)
            raise
        self._end += self._staged_bytes
        self._staged = []
        self._staged_bytes = 0

    def _check_usable(self) -> None:
        if self._failed:
            raise DiskFailed(f"the quorum's journal failed before: {self._failed}")

    # --- Dropping the prefix ---

    def drop_before(self, index: int) -> None:
        """Make `index` the base, because a snapshot covers it and everything before it. Durable on return.

        After a `ResourceShortage` the journal may be unchanged and usable.
        """
        if not self.base_index <= index <= self.last_index:
            raise InvariantViolation(f"base {index} for a log of {self.base_index} to {self.last_index}")
        if index > self.base_index:
            _, _, term = self.entries[index - self.base_index]
            entries = [(b"", index, term), *self.entries[index - self.base_index + 1 :]]
            self._rewrite(entries, self.configuration_at(index))

    def trailing_base(self, index: int, entries: int, size: int) -> int:
        """Return the lowest base that keeps at most `entries` entries and `size` bytes of commands up to `index`."""
        held = self.entries
        first = self.base_index
        base = index
        kept = 0
        least = max(first, index - entries)
        while base > least:
            kept += len(held[base - first][0])
            if kept > size:
                break
            base -= 1
        return base

    def reset(self, index: int, term: int, configuration: bytes = b"") -> None:
        """Replace the whole log by a snapshot that ends with this entry and this configuration. Durable on return."""
        self._rewrite([(b"", index, term)], self._configuration_in(configuration))

    def _configuration_in(self, packed: bytes) -> Configuration:
        return decode_configuration(packed) if packed else Configuration.initial(self._identity.voters)

    @staticmethod
    def _configurations_of(
        entries: list[tuple[bytes, int, int]], base: Configuration
    ) -> list[tuple[int, Configuration]]:
        found = [(entries[0][1], base)]
        for command, index, _ in entries[1:]:
            configuration = decode_entry(command)
            if configuration is not None:
                found.append((index, configuration))
        return found

    def _rewrite(self, entries: list[tuple[bytes, int, int]], base: Configuration) -> None:
        self._check_usable()
        configurations = self._configurations_of(entries, base)
        content, records = _generation(self._identity, entries, self.term, self.vote, base)
        try:
            file = _write_generation(self._disk, self._generation + 1, content)
            self._witness.say(Word(self._generation + 1, len(content)))
            self._file.close()
            self._forget([self._generation])
        except RaftlogError as error:
            if not (isinstance(error, ResourceShortage) and self._is_unnamed(self._generation + 1)):
                self._failed = str(error)
            raise
        self._file = file
        self._generation += 1
        self.path = generation_path(self._generation)
        self.entries = entries
        self.configurations = configurations
        self._end = len(content)
        self._records = records
        self._staged = []
        self._staged_bytes = 0
        self._unwitnessed = True

    def _is_unnamed(self, generation: int) -> bool:
        """Return whether certainly no file has this generation's name, so that the present one is still current."""
        try:
            return not self._disk.exists(generation_path(generation))
        except RaftlogError:
            return False

    def _forget(self, generations: list[int]) -> None:
        for generation in generations:
            self._disk.remove(generation_path(generation))
        self._disk.remove(_TEMPORARY)

    def close(self, *, sync: bool = True) -> None:
        """Sync the journal, mark its witness, and close the files. A failed journal is closed only."""
        if sync and not self._failed:
            # A shortage loses nothing: everything promised is durable already.
            with contextlib.suppress(ResourceShortage):
                self.mark()
        self._file.close()
        self._witness.close()


def _generations(disk: Disk) -> list[int]:
    found = (_NAME.fullmatch(name) for name in disk.list(FOLDER))
    return sorted(int(match.group(1)) for match in found if match)


def _generation(
    identity: QuorumIdentity,
    entries: list[tuple[bytes, int, int]],
    term: int,
    vote: int,
    configuration: Configuration,
) -> tuple[bytes, int]:
    """Return a new file's first content and its number of records.

    The content ends with a mark that vouches for all of it: the file gets its name only when it is durable.
    """
    _, base_index, base_term = entries[0]
    header = Header(
        version=fmt.FORMAT_VERSION,
        cluster_id=identity.cluster_id,
        node_id=identity.node_id,
        directory_id=identity.directory_id,
        voters=tuple(sorted(identity.voters)),
        base_index=base_index,
        base_term=base_term,
        term=term,
        vote=vote,
        configuration=encode_configuration(configuration),
    )
    buffers = fmt.encode(Kind.HEADER, fmt.encode_header(header), sequence=0, synced=0)
    for number, (command, index, entry_term) in enumerate(entries[1:], start=1):
        buffers += fmt.encode(Kind.ENTRY, fmt.encode_entry(index, entry_term, command), sequence=number, synced=0)
    content = b"".join(buffers)
    mark = fmt.encode(Kind.MARK, b"", sequence=len(entries), synced=len(content))
    return b"".join([content, *mark]), len(entries) + 1


def _write_generation(disk: Disk, generation: int, content: bytes) -> File:
    disk.remove(_TEMPORARY)
    file = disk.open(_TEMPORARY, create=True, exclusive=True)
    try:
        file.pwritev([content], 0)
        file.fsync()
        disk.rename(_TEMPORARY, generation_path(generation))
        disk.fsync_directory(FOLDER)
    except RaftlogError:
        file.close()
        raise
    return file


def _check_owner(path: str, header: Header, identity: QuorumIdentity) -> None:
    found = (header.cluster_id, header.node_id, header.directory_id, header.voters)
    wanted = (identity.cluster_id, identity.node_id, identity.directory_id, tuple(sorted(identity.voters)))
    names = ("cluster", "node", "directory", "voters")
    for name, here, there in zip(names, wanted, found, strict=True):
        if here != there:
            raise InvalidRequest("invalid_config", f"{path} belongs to {name} {there!r}, this node's is {here!r}")
