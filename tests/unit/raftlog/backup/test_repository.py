"""Repositories: complete and incomplete backups, chains, and manifests that are damaged, hostile or contradictory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from raftlog.backup.chain import files_of, newest
from raftlog.backup.format import COMPLETE, MANIFEST, Manifest, encode
from raftlog.backup.storage import FileStore
from raftlog.backup.verify import Verification, verify_backup
from raftlog.errors import DiskError, InvalidRequest
from tests.support.backups import LOG, TOPIC_ID, HandMade, batch


class Quiet:
    """A listener that remembers every call."""

    def __init__(self) -> None:
        self.bytes = self.records = 0
        self.warnings: list[str] = []

    def advance(self, size: int, records: int) -> None:
        self.bytes += size
        self.records += records

    def warn(self, text: str) -> None:
        self.warnings.append(text)


@pytest.fixture
def made(tmp_path: Path) -> HandMade:
    return HandMade(tmp_path / "backups")


def verified(made: HandMade, name: str | None = None) -> Verification:
    return verify_backup(made.repository, name, Quiet())


def test_a_backup_is_verified_file_by_file(made: HandMade) -> None:
    manifest = made.add([LOG[:3], LOG[3:]], end=15, committed=15)
    found = verified(made)
    assert found.problems == [] and found.notes == []
    assert (found.backup, found.files, found.batches, found.partitions) == (manifest.name, 2, 5, 1)


def test_a_chain_holds_each_partition_across_its_backups(made: HandMade) -> None:
    made.add([LOG[:3]], end=9)
    made.add([LOG[3:4]], end=10, continues=True)
    last = made.add([LOG[4:]], end=15, start=8, continues=True)
    chain = made.repository.chain(last.name)
    assert [one.number for one in chain] == [3, 2, 1]
    (log,) = files_of(chain).values()
    assert [one.file.base_offset for one in log.files] == [0, 9, 10], "the first file still holds offset 8"
    assert log.first_offset == 0 and log.end_offset == 15
    assert verified(made).backups == 3


def test_files_below_the_log_start_are_not_needed(made: HandMade) -> None:
    made.add([LOG[:3]], end=9)
    (made.folder / f"000001-0000000a/data/{TOPIC_ID}/0" / f"{0:020d}.batches").unlink()
    last = made.add([LOG[4:]], end=15, start=12, continues=True)
    (log,) = files_of(made.repository.chain(last.name)).values()
    assert log.first_offset == 10 and verified(made).problems == []


def test_an_incomplete_backup_is_not_read_and_not_continued(made: HandMade) -> None:
    first = made.add([LOG], end=15)
    second = made.add([[batch(15)]], end=18, continues=True, incomplete=True)
    names = made.repository.names()
    assert (names.complete, names.incomplete, names.next_number) == ([first.name], [second.name], 3)
    assert made.repository.choose(None) == first.name
    with pytest.raises(InvalidRequest, match="incomplete"):
        made.repository.choose(second.name)
    with pytest.raises(InvalidRequest, match="no backup"):
        made.repository.choose("000009-0000000a")


def test_an_empty_place_has_no_backup(tmp_path: Path) -> None:
    made = HandMade(tmp_path / "nothing")
    with pytest.raises(InvalidRequest, match="no complete backup") as caught:
        made.repository.choose(None)
    assert caught.value.code == "not_found"
    assert made.repository.names().next_number == 1


def test_two_backups_of_one_moment_are_not_chosen_between() -> None:
    assert newest(["000001-0000000a", "000002-0000000b"]) == "000002-0000000b"
    with pytest.raises(InvalidRequest, match="at the same time"):
        newest(["000001-0000000a", "000002-0000000b", "000002-0000000c"])


def test_a_committed_offset_beyond_the_log_is_told(made: HandMade) -> None:
    made.add([LOG], end=15, committed=20)
    assert "billing: orders/0 is committed at 20, and a restore sets 15" in verified(made).notes[0]


# --- Damage -----------------------------------------------------------------------------------------------------------


def test_each_damaged_file_is_a_problem(made: HandMade) -> None:
    made.add([LOG[:3], LOG[3:]], end=15)
    first, second = sorted(made.folder.rglob("*.batches"))
    data = bytearray(first.read_bytes())
    data[80] ^= 1
    first.write_bytes(data)
    second.unlink()
    found = verified(made)
    assert len(found.problems) == 2
    assert "SHA-256" in found.problems[0] and "there is no" in found.problems[1]


@pytest.mark.parametrize("document", [MANIFEST, COMPLETE])
@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b"\xff\xfe", b'{"format": 99, "manifest_bytes": 1}'])
def test_a_damaged_document_is_refused(made: HandMade, document: str, content: bytes) -> None:
    name = made.add([LOG], end=15).name
    (made.folder / name / document).write_bytes(content)
    with pytest.raises(InvalidRequest, match=f"{name}/"):
        verified(made)


def test_a_flipped_bit_in_the_manifest_is_found(made: HandMade) -> None:
    name = made.add([LOG], end=15).name
    path = made.folder / name / MANIFEST
    path.write_bytes(path.read_bytes().replace(b'"created_ms": 1000', b'"created_ms": 1001'))
    with pytest.raises(InvalidRequest, match="damaged"):
        verified(made)


def replace_partition(**changes: object) -> Callable[[Manifest], Manifest]:
    def apply(manifest: Manifest) -> Manifest:
        topic = manifest.topics[0]
        partition = msgspec.structs.replace(topic.partitions[0], **changes)
        return msgspec.structs.replace(manifest, topics=[msgspec.structs.replace(topic, partitions=[partition])])

    return apply


CONTRADICTIONS: list[tuple[Callable[[Manifest], Manifest], str]] = [
    (replace_partition(end_offset=99), "ends at 99, and its files at 15"),
    (replace_partition(end_offset=0, log_start_offset=1), "begins after its end"),
    (replace_partition(files=[]), "has no file"),
    (replace_partition(partition=1), "partition 0 of topic orders is missing"),
    (replace_partition(continues=True), "before the first one"),
    (lambda one: replace_partition(files=one.topics[0].partitions[0].files[1:])(one), "lacks what is before 9"),
    (lambda one: replace_partition(files=one.topics[0].partitions[0].files[::2])(one), "lacks a file at 9"),
    (lambda one: msgspec.structs.replace(one, topics=one.topics * 2), "is there twice"),
]


@pytest.mark.parametrize(("change", "why"), CONTRADICTIONS)
def test_a_manifest_that_contradicts_itself_is_refused(
    made: HandMade, change: Callable[[Manifest], Manifest], why: str
) -> None:
    manifest = made.add([LOG[:3], LOG[3:4], LOG[4:]], end=15)
    made.repository.complete(change(manifest))
    with pytest.raises(InvalidRequest, match=why):
        verified(made)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (TOPIC_ID, "../../../../../etc/passwd"),
        ('"base_offset": 0', '"base_offset": -1'),
        ('"bytes": ', '"bytes": 99999999999'),
        ('"name": "000001-0000000a"', '"name": "../000001-0000000a"'),
        ('"partition": 0', '"partition": 1e300'),
    ],
)
def test_a_hostile_manifest_names_nothing_outside(made: HandMade, old: str, new: str) -> None:
    """The writer of the manifest computed its checksum, too."""
    manifest = made.add([LOG], end=15)
    hostile = encode(manifest).decode().replace(old, new)
    assert hostile != encode(manifest).decode()
    store = FileStore(str(made.folder))
    store.write(f"{manifest.name}/{MANIFEST}", hostile.encode())
    from raftlog.backup.format import Completion, digest_of

    mark = Completion(manifest_bytes=len(hostile.encode()), manifest_sha256=digest_of(hostile.encode()))
    store.write(f"{manifest.name}/{COMPLETE}", encode(mark))
    with pytest.raises(InvalidRequest, match="damaged"):
        verified(made)


def test_a_chain_whose_link_was_replaced_is_refused(made: HandMade) -> None:
    first = made.add([LOG[:3]], end=9)
    made.add([LOG[3:]], end=15, continues=True)
    made.repository.complete(msgspec.structs.replace(first, created_ms=2_000))
    with pytest.raises(InvalidRequest, match="is not the one that 000002-0000000a continues"):
        verified(made)


def test_a_missing_link_is_named(made: HandMade) -> None:
    first = made.add([LOG[:3]], end=9)
    made.add([LOG[3:]], end=15, continues=True)
    (made.folder / first.name / COMPLETE).unlink()
    with pytest.raises(InvalidRequest, match="backup 000002-0000000a continues it"):
        verified(made)


# --- The store --------------------------------------------------------------------------------------------------------


def test_a_store_reports_what_it_cannot_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="neither a path nor the URI"):
        FileStore("nothing://here/it/is")
    (tmp_path / "file").write_bytes(b"x")
    store = FileStore(f"file://{tmp_path}")
    with pytest.raises(DiskError):
        store.write("file/below", b"x")
    with pytest.raises(InvalidRequest, match="longer"):
        store.read("file", 0)
    assert store.read("file", 1) == b"x" and not store.exists("nothing")


def test_an_error_shows_neither_credentials_nor_options() -> None:
    with pytest.raises(InvalidRequest) as caught:
        FileStore("nothing://key:secret@bucket/path?token=secret")
    assert "nothing://bucket/path is neither" in caught.value.detail and "secret" not in caught.value.detail
