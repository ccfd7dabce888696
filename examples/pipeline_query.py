"""The pipeline's two Spark queries, as a separate program that may be killed and then continues from its checkpoints.

    python examples/pipeline_query.py BOOTSTRAP FOLDER

1. Flights (topic `departures`) are joined with the weather of their hour and airport (topic `weather`) and counted by
   day and weather. Each complete day goes to the topic `delays`, exactly once, in micro-batches of 60,000.
2. The topic `delays` goes to Parquet files.

Both queries read the available records and end.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLIGHT = "scheduled TIMESTAMP, hour TIMESTAMP, delay_minutes INT, origin STRING"
WEATHER = "origin STRING, hour TIMESTAMP, rain_inches DOUBLE, wind_mph DOUBLE, sight_miles DOUBLE"
DELAYS = "day DATE, weather STRING, flights BIGINT, delay_minutes BIGINT"
WATERMARK = "24 hours"
"""Longer than the greatest delay, so that every flight is counted."""
PER_TRIGGER = 60_000

KIND = """
CASE WHEN rain_inches > 0 THEN 'rain'
     WHEN sight_miles < 5 THEN 'mist'
     WHEN wind_mph > 20 THEN 'wind'
     WHEN wind_mph IS NULL THEN 'unknown'
     ELSE 'fair' END
"""


def start_spark(folder: Path) -> SparkSession:
    """Start Spark on this machine, and register raftlog's source explicitly, since it is not installed."""
    from pyspark.sql import SparkSession

    from spark_source import RaftlogSource, java

    os.environ["JAVA_HOME"] = str(java.find())
    os.environ["PYSPARK_PYTHON"] = str(python_for_spark(folder))
    builder = SparkSession.builder.master("local[2]").appName("raftlog pipeline")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(RaftlogSource)
    return spark


def python_for_spark(folder: Path) -> Path:
    """Write a script that runs Python with the installed pyspark; otherwise each of Spark's processes would compile it
    from a zip file."""
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{Path(__file__).parents[1]}" exec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return program


def weather(spark: SparkSession, bootstrap: str) -> DataFrame:
    """Return one row for each hour and airport. If there are two (when clocks are set back), the worse weather
    counts."""
    from pyspark.sql import functions

    reader = spark.read.format("raftlog").option("raftlog.bootstrap.servers", bootstrap)
    text = reader.options(subscribe="weather", columns="value").load().selectExpr("CAST(value AS STRING) AS text")
    rows = text.selectExpr(f"from_json(text, '{WEATHER}') AS row").select("row.*")
    worst = rows.groupBy("origin", "hour").agg(
        functions.max("rain_inches").alias("rain_inches"),
        functions.max("wind_mph").alias("wind_mph"),
        functions.min("sight_miles").alias("sight_miles"),
    )
    return worst.selectExpr("origin", "hour", f"{KIND} AS weather").cache()


def delays(spark: SparkSession, bootstrap: str) -> DataFrame:
    """Return the rows for the topic `delays`."""
    from pyspark.sql import functions

    reader = spark.readStream.format("raftlog").option("raftlog.bootstrap.servers", bootstrap)
    reader = reader.options(subscribe="departures", startingOffsets="earliest", columns="value")
    text = reader.option("maxOffsetsPerTrigger", PER_TRIGGER).load().selectExpr("CAST(value AS STRING) AS text")
    flights = text.selectExpr(f"from_json(text, '{FLIGHT}') AS row").select("row.*")
    joined = flights.withWatermark("scheduled", WATERMARK).join(weather(spark, bootstrap), ["origin", "hour"], "left")
    shaped = joined.selectExpr("scheduled", "coalesce(weather, 'unknown') AS weather", "delay_minutes")
    sums = shaped.groupBy(functions.window("scheduled", "1 day").alias("day"), "weather").agg(
        functions.count("*").alias("flights"), functions.sum("delay_minutes").alias("delay_minutes")
    )
    return sums.selectExpr(
        "weather AS key",
        "to_json(struct(CAST(day.start AS DATE) AS day, weather, flights, delay_minutes)) AS value",
    )


def run(bootstrap: str, folder: Path) -> None:
    """Run both queries, one after the other."""
    spark = start_spark(folder)
    try:
        writer = delays(spark, bootstrap).writeStream.format("raftlog").option("raftlog.bootstrap.servers", bootstrap)
        writer = writer.options(topic="delays", checkpointLocation=str(folder / "checkpoint-delays"))
        query = writer.outputMode("append").trigger(availableNow=True).start()
        print(f"query {query.id}", flush=True)
        query.awaitTermination()
        rows = sum(progress.numInputRows for progress in query.recentProgress)
        print(f"read {rows} rows in {len(query.recentProgress)} micro-batches", flush=True)

        reader = spark.readStream.format("raftlog").option("raftlog.bootstrap.servers", bootstrap)
        reader = reader.options(subscribe="delays", startingOffsets="earliest", columns="value")
        text = reader.load().selectExpr("CAST(value AS STRING) AS text")
        files = text.selectExpr(f"from_json(text, '{DELAYS}') AS row").select("row.*").coalesce(1)
        parquet = files.writeStream.format("parquet").option("path", str(folder / "delays"))
        parquet = parquet.option("checkpointLocation", str(folder / "checkpoint-files"))
        parquet.trigger(availableNow=True).start().awaitTermination()
    finally:
        spark.stop()


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]))
