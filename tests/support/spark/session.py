"""One Spark session per file of tests, run from the built wheel.

Without Java the tests that need it are skipped, and name the missing package. Spark's own processes find raftlog in the
unpacked wheel, as they would on a user's machine; the tests' process uses the sources.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_source import java

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

ROOT = Path(__file__).resolve().parents[3]
BUILD_SECONDS = 120
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Little data and many small queries: compiling costs more than it saves.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.level=ERROR",
}
TOO_SLOW_TO_START = "Python worker failed to connect back"
"""Spark gives a stream's Python process ten seconds to start, regardless of the machine's load."""
STARTS = 5


@contextlib.contextmanager
def session(
    master: str = "local[2]", settings: Mapping[str, str] | None = None, wheel: Path | None = None
) -> Iterator[SparkSession]:
    """A session on two cores of this machine, with these settings beside `SETTINGS`. `wheel`: unpacked already. Skips
    the test if there is no Java."""
    try:
        home = java.find()
    except java.NoJava as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory(prefix="raftlog-spark-") as folder, warnings.catch_warnings():
        # Warnings of Spark's about its own dependencies.
        warnings.simplefilter("ignore")
        program = python_for_spark(_kept_folder(), wheel or _own_wheel())
        given = {"JAVA_HOME": str(home), "PYSPARK_PYTHON": str(program)}
        before = {name: os.environ.get(name) for name in given}
        os.environ.update(given)
        try:
            from pyspark.sql import SparkSession

            builder = SparkSession.builder.master(master).config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            for name, value in {**SETTINGS, **(settings or {})}.items():
                builder = builder.config(name, value)
            spark = builder.getOrCreate()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        spark.sparkContext.setLogLevel("OFF")
        try:
            yield spark
        finally:
            spark.stop()


@functools.cache
def _kept_folder() -> Path:
    """A folder of this process, until it ends: the first session's JVM serves all later ones, and remembers its
    Python."""
    folder = tempfile.TemporaryDirectory(prefix="raftlog-spark-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


@functools.cache
def _own_wheel() -> Path:
    return unpacked_wheel(_kept_folder())


def unpacked_wheel(folder: Path) -> Path:
    """A folder from which raftlog is imported as it is packaged."""
    command = [sys.executable, "-P", "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=BUILD_SECONDS)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "wheel")
    return folder / "wheel"


def started(start: Callable[[], StreamingQuery], patience_s: float) -> StreamingQuery:
    """A query whose first micro-batch is over, or that has ended."""
    for _ in range(STARTS):
        query = start()
        deadline = time.monotonic() + patience_s
        while query.isActive and query.lastProgress is None:
            assert time.monotonic() < deadline, query.status
            time.sleep(0.05)
        if TOO_SLOW_TO_START not in str(query.exception()):
            break
    return query


def python_for_spark(folder: Path, wheel: Path) -> Path:
    """The Python that Spark starts: it imports raftlog from the wheel, and pyspark as installed. Spark would import
    pyspark from a zip file, which each of its many processes compiles for a second."""
    program = folder / "python"
    # Safe path: the sources are in the tests' working directory, where `-m` would look first.
    program.write_text(f'#!/bin/sh\nPYTHONSAFEPATH=1 PYTHONPATH="{wheel}" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return program


class Arrived:
    """The results of a streaming query's micro-batches, one table each. Pass it to `foreachBatch`."""

    def __init__(self) -> None:
        self.tables: list[pyarrow.Table] = []

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        self.tables.append(frame.toArrow())

    @property
    def sizes(self) -> list[int]:
        return [table.num_rows for table in self.tables]

    def rows(self) -> list[dict[str, Any]]:
        return [row for table in self.tables for row in table.to_pylist()]

    def places(self) -> list[tuple[int, int]]:
        """(partition, offset) of every row, sorted."""
        return sorted((row["partition"], row["offset"]) for row in self.rows())
