"""A folder that Spark's file sink writes to: its content by the sink's log, and a batch read of it by Spark.

The log (`_spark_metadata`) has a file for each micro-batch, which names the files that it added; every tenth contains
all earlier ones, too. A file that the log does not name was left by a killed driver, and belongs to no micro-batch.

`python -P -m tests.support.spark.parquet FOLDER WHEEL ANSWER` reads as a user would, and writes the result.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .session import ROOT, session

PATIENCE_S = 600
"""A timeout: a JVM of its own takes half a minute on an idle machine."""
WHOLE = ".compact"
"""The suffix of the log's file that contains all earlier ones."""


@dataclass(frozen=True)
class SparkRead:
    """The result of a batch read by Spark."""

    files: set[str]
    """The files that it read, by name."""
    values: Counter[bytes]


class ParquetFolder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._log = folder / "_spark_metadata"

    def last(self) -> int:
        """The last micro-batch in the log; -1: none."""
        return max((number for number, _ in self._entries()), default=-1)

    def named(self) -> list[str]:
        """File names, each as often as the log names it."""
        try:
            return self._named()
        except FileNotFoundError:
            # A later file that contains all earlier ones exists, and those are removed some minutes after they were
            # written.
            return self._named()

    def unnamed(self) -> set[str]:
        """Files that are in no micro-batch."""
        there = {file.name for file in self.folder.glob("*.parquet")}
        return there - set(self.named())

    def values(self) -> Counter[bytes]:
        """The values of the column `value`, in all files that are named."""
        from pyarrow.parquet import ParquetFile

        found: Counter[bytes] = Counter()
        for name in self.named():
            assert (self.folder / name).exists(), f"the log names {name}, which is not there"
            found.update(ParquetFile(self.folder / name).read(columns=["value"])["value"].to_pylist())
        return found

    def read_by_spark(self, wheel: Path, answer: Path) -> SparkRead:
        """`answer`: a file to be written."""
        command = [sys.executable, "-P", "-m", "tests.support.spark.parquet", self.folder, wheel, answer]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr[-4_000:]
        found = json.loads(answer.read_text())
        return SparkRead(set(map(_name, found["files"])), Counter(value.encode() for value in found["values"]))

    def _named(self) -> list[str]:
        entries = sorted(self._entries())
        whole = max((number for number, file in entries if file.name.endswith(WHOLE)), default=-1)
        rest = [file for number, file in entries if number >= whole]
        return [name for file in rest for name in _files_of(file)]

    def _entries(self) -> Iterator[tuple[int, Path]]:
        if not self._log.exists():
            return
        for file in self._log.iterdir():
            number = file.name.removesuffix(WHOLE)
            if number.isdigit():
                yield int(number), file


def _files_of(entry: Path) -> list[str]:
    """A version, then one file per line."""
    version, *lines = entry.read_text().splitlines()
    assert version == "v1", entry
    files = [json.loads(line) for line in lines]
    assert all(file["action"] == "add" for file in files), entry
    return [_name(file["path"]) for file in files]


def _name(uri: str) -> str:
    return Path(unquote(urlsplit(uri).path)).name


def main(folder: str, wheel: str, answer: str) -> None:
    with session(wheel=Path(wheel)) as spark:
        frame = spark.read.parquet(folder)
        values = frame.selectExpr("CAST(value AS STRING) AS value").toArrow()["value"].to_pylist()
        Path(answer).write_text(json.dumps({"files": frame.inputFiles(), "values": values}))


if __name__ == "__main__":
    main(*sys.argv[1:])
