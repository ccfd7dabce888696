"""The results, a line of JSON a mutant, and what they add up to.

A row counts while its file is what it was (by git's hash of it). Of several rows of a mutant the last counts, so one
that survived is judged again after its test was written. A mutant that no test can tell from the product is
*equivalent*: `equivalent.jsonl` names it with the reason why, and the score leaves it out.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .judging import INVALID, KILLED, SURVIVED, TIMEOUT

HERE = Path(__file__).parent
RESULTS = HERE / "mutants.jsonl"
EQUIVALENT = HERE / "equivalent.jsonl"


@dataclass(frozen=True)
class Score:
    """Of the rows that count."""

    killed: int
    survived: list[Mapping[str, Any]]
    equivalent: int
    outdated: int
    """Rows of files that were changed since then."""
    by_folder: Mapping[str, tuple[int, int]]
    """Folder → killed, and killed or survived."""

    @property
    def ratio(self) -> float:
        """Killed among those that can be."""
        judged = self.killed + len(self.survived)
        return self.killed / judged if judged else 0.0


def blob_of(content: bytes) -> str:
    """As `git hash-object`."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def read(file: Path) -> list[dict[str, Any]]:
    """All rows; what a stop tore is none."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def counting(rows: Iterable[Mapping[str, Any]], root: Path) -> tuple[dict[str, Mapping[str, Any]], int]:
    """Mutant → its last row, if its file is as it was; and how many are outdated."""
    blobs: dict[str, str] = {}
    last: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        last[row["mutant"]] = row
    found = {}
    for mutant, row in last.items():
        path = root / row["file"]
        if row["file"] not in blobs:
            blobs[row["file"]] = blob_of(path.read_bytes()) if path.exists() else ""
        if blobs[row["file"]] == row["blob"]:
            found[mutant] = row
    return found, len(last) - len(found)


def equivalents(file: Path = EQUIVALENT) -> dict[str, str]:
    """Mutant → why nothing can tell it from the product. Raises `ValueError` where no reason is given."""
    found = {}
    for row in read(file):
        if not str(row["why"]).strip():
            raise ValueError(f"{file}: {row['mutant']} has no reason")
        found[str(row["mutant"])] = str(row["why"])
    return found


def score(rows: Iterable[Mapping[str, Any]], root: Path, equivalent: Mapping[str, str]) -> Score:
    """What the rows say of the tree at `root`."""
    counted, outdated = counting(rows, root)
    judged = [row for row in counted.values() if row["outcome"] != INVALID]
    killed = [row for row in judged if row["outcome"] in (KILLED, TIMEOUT)]
    survived = [row for row in judged if row["outcome"] == SURVIVED]
    open_ones = [row for row in survived if row["mutant"] not in equivalent]
    dead, all_of = (Counter(_folder(row["file"]) for row in rows) for rows in (killed, [*killed, *open_ones]))
    by_folder = {folder: (dead[folder], total) for folder, total in sorted(all_of.items())}
    return Score(len(killed), open_ones, len(survived) - len(open_ones), outdated, by_folder)


def _folder(file: str) -> str:
    return file.rpartition("/")[0]
