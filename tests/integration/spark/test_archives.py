"""Executors without raftlog get it with the environment that the driver sends along (`--archives`).

The archive has the content of a packed virtual environment: `bin/python`, and packages that only this Python imports.

Run it by hand: `python -P -m pytest -q -m soak tests/integration/spark/test_archives.py`. It takes a gigabyte of memory
for an executor.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from raftlog.sync import Admin, Producer
from spark_source import java
from tests.support.clusters.cluster import running_cluster
from tests.support.spark.session import python_for_spark, unpacked_wheel

pytestmark = [pytest.mark.integration, pytest.mark.soak]

SECONDS = 300
PROGRAM = """
import sys
from pyspark.sql import SparkSession

bootstrap, archive = sys.argv[1:]
builder = SparkSession.builder.master("local-cluster[1,1,1024]").config("spark.archives", archive + "#env")
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
reader = spark.read.format("raftlog").option("raftlog.bootstrap.servers", bootstrap).option("subscribe", "sent")
print("rows", reader.load().count())

def where(batches):
    import pyarrow
    import spark_source
    yield pyarrow.RecordBatch.from_pydict({"place": [spark_source.__file__]})

print("from", spark.range(1).mapInArrow(where, "place STRING").collect()[0].place)
"""


def packed_environment(folder: Path, wheel: Path) -> Path:
    environment = folder / "environment"
    (environment / "bin").mkdir(parents=True)
    shutil.copytree(wheel, environment / "packages")
    python = environment / "bin" / "python"
    own = '"$(dirname "$0")/../packages"'
    python.write_text(f'#!/bin/sh\nPYTHONSAFEPATH=1 PYTHONPATH={own} exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    archive = folder / "env.tar.gz"
    with tarfile.open(archive, "w:gz") as packing:
        packing.add(environment, arcname=".")
    return archive


def test_a_packed_environment_brings_raftlog_to_the_executors(tmp_path: Path) -> None:
    try:
        home = java.find()
    except java.NoJava as error:
        pytest.skip(str(error))
    wheel = unpacked_wheel(tmp_path)
    archive = packed_environment(tmp_path, wheel)
    driver = python_for_spark(tmp_path, wheel)
    (tmp_path / "program.py").write_text(PROGRAM)
    environment = {
        **os.environ,
        "JAVA_HOME": str(home),
        "PYSPARK_DRIVER_PYTHON": str(driver),
        "PYSPARK_PYTHON": "./env/bin/python",
        "SPARK_WORKER_DIR": str(tmp_path / "worker"),
    }
    with running_cluster(1) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("sent", partitions=2)
        with Producer(cluster.bootstrap) as producer:
            for partition in range(2):
                producer.send_many("sent", [b"x"] * 100, partition=partition)
        # In a folder without an `env` of its own.
        command = [str(driver), "program.py", cluster.bootstrap, str(archive)]
        ran = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    assert ran.returncode == 0, ran.stderr[-4_000:]
    rows, place = ran.stdout.splitlines()[-2:]
    assert rows == "rows 200"
    assert place.startswith("from ") and "/env/" in place and "/packages/spark_source/" in place
