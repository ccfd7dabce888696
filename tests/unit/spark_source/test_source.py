"""The package as Spark sees it, without Spark: a light import, clear errors for missing or old dependencies."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import spark_source
from raftlog.client import Credentials
from raftlog.errors import InvalidRequest
from spark_source import requirements
from spark_source.connections import Connections, security_of
from spark_source.options.cluster import ClusterOptions, cluster_of
from spark_source.options.values import refused
from spark_source.reading.options import parse

OLD_SPARK = """
import sys
from types import ModuleType

class Base:
    def __init__(self, options):
        self.options = options

for name in ("pyspark", "pyspark.sql", "pyspark.sql.datasource"):
    sys.modules[name] = ModuleType(name)
sys.modules["pyspark"].__version__ = "4.1.1"
for name in ("DataSource", "DataSourceReader", "DataSourceStreamReader", "InputPartition"):
    setattr(sys.modules["pyspark.sql.datasource"], name, type(name, (Base,), {}))

from spark_source.default_source import DefaultSource
print(DefaultSource.name(), sorted({"aiohttp", "pyarrow", "msgspec", "raftlog.client"} & set(sys.modules)))
try:
    DefaultSource({})
except Exception as error:
    print(error)
"""


def test_the_module_that_spark_loads_by_itself_is_light_and_loads_in_an_old_spark() -> None:
    """An error in it would break the lookup of every other source."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    ran = subprocess.run(
        [sys.executable, "-P", "-c", OLD_SPARK], capture_output=True, text=True, check=True, env=environment, timeout=60
    )
    name, told = ran.stdout.splitlines()
    assert name == "raftlog []"
    assert "needs pyspark 4.2 or newer, and 4.1.1 is installed: pip install 'raftlog[spark]'" in told


def test_a_spark_without_python_sources_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyspark", "pyspark.sql"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["pyspark"].__version__ = "3.5.1"  # type: ignore[attr-defined]
    for name in ("pyspark.sql.datasource", "spark_source.source"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(InvalidRequest, match=r"needs pyspark 4\.2 or newer, and 3\.5\.1 is installed: pip install"):
        _ = spark_source.RaftlogSource


@pytest.mark.parametrize(
    ("version", "fits"), [("4.1.9", False), ("3.5.0", False), ("4.2.0", True), ("5.0.0.dev1", True)]
)
def test_spark_must_be_new_enough(version: str, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = ModuleType("pyspark")
    spark.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyspark", spark)
    if fits:
        requirements.check_pyspark()
    else:
        with pytest.raises(InvalidRequest, match=r"4\.2 or newer"):
            requirements.check_pyspark()


def test_a_user_schema_is_refused() -> None:
    columns = ("key", "value")
    requirements.check_schema(SimpleNamespace(fieldNames=lambda: ["key", "value"]), columns)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="use the option columns"):
        requirements.check_schema(SimpleNamespace(fieldNames=lambda: ["value"]), columns)  # type: ignore[arg-type]


def test_unreadable_certificates_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"raftlog\.tls\.\*.*gone\.pem contains no certificate"):
        Connections(ClusterOptions("127.0.0.1:1", str(tmp_path / "gone.pem")))
    (tmp_path / "no.pem").write_text("nothing")
    with pytest.raises(InvalidRequest, match=r"no\.pem"):
        Connections(ClusterOptions("127.0.0.1:1", str(tmp_path / "no.pem")))


def test_tokens_come_from_files_and_variables_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def credentials(**options: str) -> Credentials | None:
        given = {"raftlog.bootstrap.servers": "a:1", **{f"raftlog.{name}": text for name, text in options.items()}}
        return security_of(cluster_of(given)).get("credentials")

    assert credentials() is None, "the client's own default"
    assert credentials(**{"token.file": "/run/token"}) == Credentials(token_file="/run/token")
    with pytest.raises(InvalidRequest, match="the variable SPARK_TOKEN is not set in this process"):
        credentials(**{"token.environment": "SPARK_TOKEN"})
    monkeypatch.setenv("SPARK_TOKEN", "rlt_secret-1")
    assert credentials(**{"token.environment": "SPARK_TOKEN"}) == Credentials(token="rlt_secret-1")
    assert credentials(token="rlt_secret-1") == Credentials(token="rlt_secret-1")
    for twice in ({"token": "secret-1", "token.file": "f"}, {"token.environment": "X", "token.file": "f"}):
        with pytest.raises(InvalidRequest, match="name two tokens") as error:
            credentials(**twice)
        assert "secret-1" not in error.value.detail
    with pytest.raises(InvalidRequest, match=r"raftlog\.tls\.key needs"):
        credentials(**{"tls.key": "k.pem"})


def test_a_literal_token_is_in_no_text_s12() -> None:
    """Options of equal clusters share connections; the token decides, but is not shown."""
    given = {"raftlog.bootstrap.servers": "a:1", "raftlog.token": "secret-1", "subscribe": "t"}
    options = parse(given, streaming=True)
    assert "secret-1" not in repr(options) + str(options)
    other = cluster_of(given | {"raftlog.token": "secret-2"})
    assert options.cluster != other and hash(options.cluster) == hash(other)
    with pytest.raises(InvalidRequest) as error:
        parse(given | {"raftlog.token": "secret-1 secret-1", "RAFTLOG.token": "secret-2"}, streaming=True)
    assert "secret" not in error.value.detail
    with pytest.raises(InvalidRequest) as error:
        Connections(cluster_of(given | {"raftlog.token": "secret-1 secret-1"}))
    assert "secret" not in error.value.detail


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(InvalidRequest) as raised:
        refused("assign", "x" * 10_000, "JSON")
    assert len(raised.value.detail) < 300


def test_closed_connections_are_opened_again() -> None:
    connections = Connections(ClusterOptions("127.0.0.1:1"))
    assert connections.usable
    connections.close()
    assert not connections.usable
    connections.close()


SHIP = """
import sys
from pyspark import cloudpickle
from spark_source.source import BatchReader, RaftlogSource, StreamReader
from spark_source.sink import BatchSink, StreamSink
given = {"raftlog.bootstrap.servers": "a:1", "subscribe": "t"}
wanted, fields = {"raftlog.bootstrap.servers": "a:1", "topic": "t"}, [("value", "string")]
sinks = BatchSink(wanted, fields, "job"), StreamSink(wanted, fields)
sys.stdout.buffer.write(cloudpickle.dumps((RaftlogSource(given), BatchReader(given), StreamReader(given), *sinks)))
"""
RECEIVE = """
import pickle, sys
if sys.argv[1] == "without":
    sys.modules["spark_source"] = None
try:
    print(*(type(one).__name__ for one in pickle.load(sys.stdin.buffer)))
except ImportError as error:
    print(error)
"""


def test_an_executor_without_raftlog_reports_it() -> None:
    """Sources, readers and writers are sent to Spark's processes as cloudpickle packs them."""
    pytest.importorskip("pyspark")

    def run(program: str, *arguments: str, given: bytes = b"") -> bytes:
        command = [sys.executable, "-P", "-c", program, *arguments]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
        return subprocess.run(
            command, input=given, stdout=subprocess.PIPE, check=True, env=environment, timeout=120
        ).stdout

    packed = run(SHIP)
    names = ["RaftlogSource", "BatchReader", "StreamReader", "BatchSink", "StreamSink"]
    assert run(RECEIVE, "with", given=packed).decode().split() == names
    told = run(RECEIVE, "without", given=packed).decode()
    assert "cannot import raftlog" in told and "install raftlog[spark] on every executor" in told
