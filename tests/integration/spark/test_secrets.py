"""A token that is given as an option is in nothing that Spark shows or stores: plans, logs, event log, checkpoint.

Run it by hand: `python -P -m pytest -q -m soak tests/integration/spark/test_secrets.py`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from raftlog.client.credentials import Credentials
from raftlog.sync import Admin, Producer
from spark_source import java
from tests.support.clusters.cluster import running_cluster
from tests.support.security.token_texts import secret_part
from tests.support.spark.session import python_for_spark, unpacked_wheel

pytestmark = [pytest.mark.integration, pytest.mark.soak]

SECONDS = 300
PROGRAM = """
import sys
from pyspark.sql import SparkSession

bootstrap, authority, folder = sys.argv[1:]
token, wrong_token = sys.stdin.read().split()
builder = SparkSession.builder.master("local[2]").appName("secrets")
for name, value in {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": "file://" + folder + "/events",
    "spark.eventLog.compress": "false",
    "spark.sql.planChangeLog.level": "WARN",
    "spark.sql.warehouse.dir": folder + "/warehouse",
}.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("INFO")

where = {"raftlog.bootstrap.servers": bootstrap, "raftlog.tls.authority": authority, "raftlog.token": token}


def show(frame):
    for mode in ("simple", "extended", "codegen", "cost", "formatted"):
        frame.explain(mode)
    print(frame._jdf.queryExecution().toString())
    print(frame._jdf.queryExecution().logical().toJSON())
    print(frame)


batch = spark.read.format("raftlog").options(subscribe="near", **where).load()
show(batch)
print("rows", batch.count())
batch.select("value").write.format("raftlog").mode("append").options(topic="far", **where).save()

stream = spark.readStream.format("raftlog").options(subscribe="near", startingOffsets="earliest", **where).load()
writer = stream.select("value").writeStream.format("raftlog").options(topic="far", **where).queryName("copy")
query = writer.option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
query.explain(True)
print("progress", *(one.prettyJson if hasattr(one, "prettyJson") else one for one in query.recentProgress))

options = ", ".join("'" + name + "' '" + value + "'" for name, value in {**where, "subscribe": "near"}.items())
spark.sql("CREATE TEMPORARY VIEW viewed USING raftlog OPTIONS (" + options + ")")
print("viewed", spark.sql("SELECT count(*) FROM viewed").collect()[0][0])

spark.createDataFrame([(1,)], "n INT").createOrReplaceTempView("numbers")
batch.createOrReplaceTempView("near")
print("joined", spark.sql("SELECT count(*) FROM near, numbers").collect()[0][0])


def fail(what):
    try:
        what()
    except Exception as error:
        print("failed", type(error).__name__, error)
    else:
        print("NOT FAILED")


wrong = {**where, "raftlog.token": wrong_token}
twice = {**where, "raftlog.token.file": "f"}
fail(lambda: spark.read.format("raftlog").options(subscribe="near", **wrong).load().count())
fail(lambda: spark.read.format("raftlog").options(subscribe="near", nonsense="1", **where).load().count())
fail(lambda: spark.read.format("raftlog").options(subscribe="near", **twice).load().count())
fail(lambda: spark.read.format("raftlog").options(subscribe="missing", **where).load().count())
fail(lambda: spark.range(1).write.format("raftlog").mode("append").options(topic="far", **where).save())
fail(lambda: spark.range(1).selectExpr("raise_error('no') AS value").write.format("raftlog").mode("append")
     .options(topic="far", **where).save())
spark.stop()
print("done")
"""


def test_a_token_of_an_option_is_in_nothing_that_spark_shows_or_stores(tmp_path: Path) -> None:
    try:
        home = java.find()
    except java.NoJava as error:
        pytest.skip(str(error))
    driver = python_for_spark(tmp_path, unpacked_wheel(tmp_path))
    (tmp_path / "program.py").write_text(PROGRAM)
    shown = tmp_path / "shown"
    (shown / "events").mkdir(parents=True)
    environment = {**os.environ, "JAVA_HOME": str(home), "PYSPARK_DRIVER_PYTHON": str(driver)}
    environment["PYSPARK_PYTHON"] = str(driver)
    with running_cluster(1, secure=True) as cluster:
        security = cluster.security
        assert security is not None
        authority, token = security.authority.certificate, security.token()
        credentials = Credentials(token=token)
        with Admin(cluster.bootstrap, tls_authority=authority, credentials=credentials) as admin:
            admin.create_topic("near", partitions=2)
            admin.create_topic("far", partitions=1)
        with Producer(cluster.bootstrap, tls_authority=authority, credentials=credentials) as producer:
            producer.send_many("near", [b"x"] * 100, partition=0)
        wrong = token[:-4] + "aaaa"
        ran = subprocess.run(
            [str(driver), "program.py", cluster.bootstrap, authority, str(shown)],
            cwd=tmp_path,
            env=environment,
            input=f"{token}\n{wrong}",
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        hidden = [secret_part(token), secret_part(wrong)]
    (shown / "stdout").write_text(ran.stdout)
    (shown / "stderr").write_text(ran.stderr)
    assert ran.returncode == 0, ran.stderr[-4_000:]
    said = ran.stdout.splitlines()
    assert said[-1] == "done" and {"rows 100", "viewed 100", "joined 100"} <= set(said) and "NOT FAILED" not in said
    files = [path for path in shown.rglob("*") if path.is_file()]
    assert any("offsets" in path.parts for path in files), "there is a checkpoint"
    contents = {path: path.read_bytes() for path in files}
    for where in (shown / "events", shown / "stderr"):
        texts = [content for path, content in contents.items() if path.is_relative_to(where)]
        assert any(b"raftlog.token=*********(redacted)" in content for content in texts), f"{where} shows the options"
    found = [path for path, content in contents.items() if any(text.encode() in content for text in hidden)]
    assert found == []
