"""A plugin of pytest that gives Karapace's REST tests a node of Raftlog in place of Kafka, ZooKeeper and Karapace.

    RAFTLOG_API=127.0.0.1:9640 pytest -p raftlog_for_karapace --noconftest CHECKOUT/tests/integration/kafka_rest_apis

It runs in a process of its own, with the checkout and this folder on the path (`tests/integration/http_api/
test_karapace.py` starts it), and so imports none of our test modules. A module of Karapace that its tests import is
either its own file, if that needs only installed packages (the HTTP client, small helpers), or a stand-in with the
names that these tests use. Tests that need a schema registry, or Karapace's objects, are skipped; consumers of no
particular format, which are Avro's there, are binary.
"""

from __future__ import annotations

import enum
import os
import sys
import time
import types
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from raftlog import sync

API = os.environ["RAFTLOG_API"]
CHECKOUT = Path(os.environ["RAFTLOG_KARAPACE"])
MAX_REQUEST_BYTES = 10_240
"""As in Karapace's `tests/integration/conftest.py`."""


class SchemaType(enum.Enum):
    """As Karapace's, for the parameters of its tests."""

    AVRO = "AVRO"
    JSONSCHEMA = "JSON"
    PROTOBUF = "PROTOBUF"


class Expiration:
    """As Karapace's: the end of a wait."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline

    @classmethod
    def from_timeout(cls, timeout: float) -> Expiration:
        return cls(time.monotonic() + timeout)

    def raise_timeout_if_expired(self, msg_format: str, *args: object, **kwargs: object) -> None:
        if time.monotonic() > self._deadline:
            raise TimeoutError(msg_format.format(*args, **kwargs))


class Unused:
    """A name that tests import for annotations, or for what is skipped."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        """Take anything."""

    @classmethod
    def parse(cls, *args: object) -> Unused:
        return cls()


def _module(name: str, **names: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(names)
    sys.modules[name] = module


def _package(name: str, folder: Path) -> None:
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    sys.modules[name] = module


def _stand_in() -> None:
    source = CHECKOUT / "src" / "karapace"
    for name in ("", ".core", ".core.protobuf"):
        _package(f"karapace{name}", source.joinpath(*name.split(".")[1:]))
    _module("karapace.version", __version__="raftlog")
    _module("karapace.core.typing", JsonData=Any)
    _module("karapace.core.config", Config=Unused)
    _module("karapace.core.schema_type", SchemaType=SchemaType)
    _module("karapace.core.schema_models", SchemaType=SchemaType, ValidatedTypedSchema=Unused)
    _module("karapace.core.serialization", HEADER_FORMAT=">bI", START_BYTE=0, write_value=Unused)
    _module("karapace.core.utils", Expiration=Expiration)
    _module("karapace.core.kafka")
    _module("karapace.core.kafka.admin", KafkaAdminClient=Unused)
    _module("karapace.core.kafka.producer", KafkaProducer=Unused)
    _module("karapace.kafka_rest_apis", KafkaRest=Unused, SUBJECT_VALID_POSTFIX=[])
    formats = {"json", "avro", "binary", "jsonschema", "protobuf"}
    _module("karapace.kafka_rest_apis.consumer_manager", KNOWN_FORMATS=formats)
    _module("aiokafka")
    _module("aiokafka.errors", TopicAlreadyExistsError=type("TopicAlreadyExistsError", (Exception,), {}))
    _module("tests.integration.conftest", REST_PRODUCER_MAX_REQUEST_BYTES=MAX_REQUEST_BYTES)


_stand_in()


class Topics:
    """In place of `KafkaAdminClient`."""

    def __init__(self, admin: sync.Admin) -> None:
        self._admin = admin

    def new_topic(self, name: str, *, num_partitions: int = 1) -> None:
        self._admin.create_topic(name, num_partitions, 1)


class Records:
    """In place of `KafkaProducer`."""

    def __init__(self, producer: sync.Producer) -> None:
        self._producer = producer

    def send(self, topic: str, value: bytes, key: bytes | None = None) -> None:
        self._producer.send(topic, value, key=key)

    def flush(self) -> None:
        self._producer.flush()


@pytest.fixture(autouse=True, scope="session")
def fixture_consumers_are_binary() -> None:
    from tests import utils  # of the checkout

    there: Any = utils
    there.consumer_valid_payload["format"] = "binary"
    there.new_consumer.__defaults__ = ("binary", "", None)


@pytest.fixture(name="admin_client")
def fixture_admin_client() -> Iterator[Topics]:
    with sync.Admin(API) as admin:
        yield Topics(admin)


@pytest.fixture(name="producer")
def fixture_producer() -> Iterator[Records]:
    with sync.Producer(API) as producer:
        yield Records(producer)


@pytest.fixture(name="rest_async_client")
async def fixture_rest_async_client() -> AsyncIterator[Any]:
    from karapace.core.client import Client  # type: ignore[import-not-found]  # of the checkout

    client = Client(server_uri=f"http://{API}")
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture(name="registry_async_client")
def fixture_registry_async_client() -> None:
    pytest.skip("needs a schema registry")


@pytest.fixture(name="rest_async_novalidation_client")
def fixture_rest_async_novalidation_client() -> None:
    pytest.skip("needs a schema registry")


@pytest.fixture(name="rest_async")
def fixture_rest_async() -> None:
    pytest.skip("calls Karapace's own objects")
