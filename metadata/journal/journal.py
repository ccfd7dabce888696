"""The quorum's durable log: entries, term and vote in one append-only file, synced before anything is promised.

`append`, `truncate_from` and `set_hard_state` only stage; `sync` writes all that is staged with one `pwritev` and one
fsync. So a group costs one fsync whatever it holds, and after a crash the file is a prefix of what was staged, in
order: each prefix is a state that this node passed through.

Nothing is ever overwritten. A conflict is a TRUNCATE record; a new term is a STATE record. When the prefix of the log
is dropped, the rest goes to a new *generation* (`journal-<number>.log`): written under another name, fsynced, renamed,
the folder fsynced, and only then is the old generation removed. So there is always one file that is whole, and the
highest number is the one that counts.

Beside it the *witness* knows how much of the newest generation was fsynced: the journal cannot say itself that its end
is gone.

`configurations` are those that the log holds, by index: the one in effect at the base, then each entry that changes it.

`entries[0]` is the base: the entry before the first that the log still has, known by index and term only. Index 1 of
term 0 is the base of an empty log.

After any failed call the journal refuses all others: what is on the disk is no longer known. The exceptions are a
`ResourceShortage` before a new generation has its name: nothing was changed then, and the prefix goes another day; and
one of a write, since no fsync raises it: what is staged stays staged, nothing of it is promised, and the next `sync`
writes the same bytes to the same place.
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
"""Index of the base of an empty log."""

_NAME = re.compile(r"journal-(\d{10})\.log")
_TEMPORARY = f"{FOLDER}/journal.tmp"


def generation_path(generation: int) -> str:
    """Path of a generation's file."""
    return f"{FOLDER}/journal-{generation:010d}.log"


def prepare_journal(disk: Disk, identity: QuorumIdentity) -> None:
    """Write the empty journal of a first start, durably. `raftlog server init` calls it, before it writes `node.json`;
    nothing else does, so that a lost journal never looks like a first start (S9). Raises `InvalidRequest` where there
    is one already."""
    if disk.exists(FOLDER):
        raise InvalidRequest("invalid_config", f"{FOLDER}/ exists already; it is left as it is")
    disk.make_directory(FOLDER)
    disk.fsync_directory("")
    prepare_witness(disk)
    initial = Configuration.initial(identity.voters)
    content, _ = _generation(identity, [(b"", FIRST_INDEX, 0)], term=0, vote=fmt.NO_VOTE, configuration=initial)
    _write_generation(disk, 0, content).close()


class Journal:
    """One node's journal. Single-threaded; calls block."""

    def __init__(self, disk: Disk, identity: QuorumIdentity) -> None:
        """Open and recover. Raises `InvalidRequest` where there is none or it is another node's, `DiskDamaged` where it
        must not be trusted, `InvariantViolation` where another version wrote it."""
        self._disk = disk
        self._identity = identity
        generations = _generations(disk)
        if not generations:
            raise InvalidRequest(
                "invalid_config",
                "the quorum's journal is missing: the folder was never prepared, or the disk was lost. A voter without "
                "its journal could vote twice, so it does not start",
            )
        self._generation = generations[-1]
        path = generation_path(self._generation)
        with advising(identity.node_id):
            recovered, self._witness = self._recover(path)
        _check_owner(path, recovered.header, identity)
        self.path = path
        """Of the file that counts."""
        self._file: File = disk.open(path)
        if recovered.cut_bytes:
            self._file.truncate(recovered.end)
        # What a crashed process wrote may be in the page cache only; nothing is built on it before it is durable.
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
        """(command, index, term), dense; the first is the base."""
        self.term = recovered.term
        self.vote = recovered.vote
        self.cut_bytes = recovered.cut_bytes
        """What recovery cut: a group that was never promised."""
        self.configurations = self._configurations_of(
            self.entries, self._configuration_in(recovered.header.configuration)
        )
        """(index, configuration), the latest last; the first is in effect at the base."""
        self._end = recovered.end
        self._records = recovered.records
        self._staged: list[Buffer] = []
        self._staged_bytes = 0
        self._unwitnessed = True
        self._failed = ""

    # --- The log ---

    @property
    def node_id(self) -> int:
        """Whose it is."""
        return self._identity.node_id

    @property
    def base_index(self) -> int:
        """The log has the entries after this index."""
        return self.entries[0][1]

    @property
    def last_index(self) -> int:
        return self.entries[-1][1]

    @property
    def last_term(self) -> int:
        """Term of the last entry."""
        return self.entries[-1][2]

    def term_at(self, index: int) -> int | None:
        """Term of the entry at `index`; None where the log does not have it."""
        entries = self.entries
        position = index - entries[0][1]
        return entries[position][2] if 0 <= position < len(entries) else None

    @property
    def usable(self) -> bool:
        """No call failed for good."""
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
        """The one in effect once the log has come to `index`."""
        return next(configuration for at, configuration in reversed(self.configurations) if at <= index)

    def set_hard_state(self, term: int, vote: int) -> None:
        """Stage term and vote. Within a term a vote is given once."""
        if term < self.term or (term == self.term and self.vote not in (fmt.NO_VOTE, vote)):
            raise InvariantViolation(f"term {term} vote {vote} after term {self.term} vote {self.vote}")
        if (term, vote) != (self.term, self.vote):
            self._stage(Kind.STATE, fmt.encode_state(term, vote))
            self.term, self.vote = term, vote

    # --- Durability ---

    @property
    def dirty(self) -> bool:
        """Something is staged."""
        return bool(self._staged)

    @property
    def unwitnessed(self) -> bool:
        """The last group is durable, but after a power loss nothing might say so: a `mark` is due when things are
        quiet."""
        return self._unwitnessed

    @property
    def size_bytes(self) -> int:
        """Bytes of the file, with what is staged."""
        return self._end + self._staged_bytes

    def sync(self) -> None:
        """Everything staged is durable when this returns. One fsync, or none where nothing is staged. After a
        `ResourceShortage` it is still staged: call again."""
        if self._staged:
            self._write_staged()
            self._unwitnessed = True

    def mark(self) -> None:
        """Have the last group's witness outlive a power loss. One fsync, or none where it would already."""
        self.sync()
        if self._unwitnessed:
            self._check_usable()
            try:
                self._witness.say(Word(self._generation, self._end))
                self._witness.sync()
            except ResourceShortage:
                raise  # For now the witness says less than it might.
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
            raise  # The same bytes go to the same place another time, and more after them.
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
        """`index` becomes the base: a snapshot covers it and everything before. Durable when this returns. After a
        `ResourceShortage` the journal may be as it was, and usable."""
        if not self.base_index <= index <= self.last_index:
            raise InvariantViolation(f"base {index} for a log of {self.base_index} to {self.last_index}")
        if index > self.base_index:
            _, _, term = self.entries[index - self.base_index]
            entries = [(b"", index, term), *self.entries[index - self.base_index + 1 :]]
            self._rewrite(entries, self.configuration_at(index))

    def trailing_base(self, index: int, entries: int, size: int) -> int:
        """The base that keeps, up to `index`, so many entries and so many bytes of them, or fewer."""
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
        """The whole log gives way to a snapshot that ends with this entry, and with this configuration. Durable when
        this returns."""
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
        """No file has this generation's name, certainly: the present one is still the one that counts."""
        try:
            return not self._disk.exists(generation_path(generation))
        except RaftlogError:
            return False

    def _forget(self, generations: list[int]) -> None:
        for generation in generations:
            self._disk.remove(generation_path(generation))
        self._disk.remove(_TEMPORARY)

    def close(self, *, sync: bool = True) -> None:
        """Sync, witness and let go of the file. A failed journal is only let go of."""
        if sync and not self._failed:
            # In a shortage nothing is lost: what was promised is durable, and no more was.
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
    """A file's first content, (bytes, records). It ends with a witness of itself: the file gets its name only when it
    is durable."""
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
