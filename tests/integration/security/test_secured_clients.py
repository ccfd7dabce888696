"""Clients of one node with security: programs, Spark's tasks and the command line (S11, S12)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from raftlog.client import Admin, Consumer, Credentials, GroupConsumer, Producer
from raftlog.errors import InvalidRequest
from spark_source import connections
from spark_source.driver.batch import plan
from spark_source.reading import options as source_options
from spark_source.reading.filters import Restrictions
from spark_source.tasks import read as executor
from spark_source.writing import decision as sink_decision
from spark_source.writing import options as sink_options
from spark_source.writing import task as sink_task
from spark_source.writing.columns import find
from spark_source.writing.names import MicroBatch
from spark_source.writing.publication import publication
from tests.integration.security.test_secured_node import PASSWORD, Secured, secured
from tests.support.cli_runner import start

__all__ = ["secured"]

pytestmark = pytest.mark.integration

PATIENCE_S = 30.0


def bootstrap(secured: Secured) -> str:
    return f"https://{secured.node.api}"


def settings(secured: Secured, token: str | None = None, **more: Any) -> dict[str, Any]:
    """The keywords of a client that trusts the node."""
    credentials = Credentials() if token is None else Credentials(token=token)
    return {"tls_authority": str(secured.folder / "authority.pem"), "credentials": credentials, **more}


async def allowed_user(secured: Secured, name: str) -> str:
    """Create a topic and a user that may use it; return its token."""
    token = await secured.new_user(name)
    await secured.administer("POST", "/v1/topics", {"name": "orders", "partitions": 1})
    for operation, resource, kind in (
        ("write", "orders", "topic"), ("read", "orders", "topic"), ("read", "g", "group"),
        ("write", "named", "transactional_id"),
    ):  # fmt: skip
        await secured.allow(name, operation, resource, kind)
    return token


async def use(secured: Secured, **given: Any) -> None:
    """Send, read, read as a group, and commit transactions."""
    where = bootstrap(secured)
    async with asyncio.timeout(PATIENCE_S):
        async with Producer(where, **given) as producer:
            await producer.send_and_wait("orders", b"1")
            async with producer.transaction() as transaction:
                transaction.send("orders", b"2")
        async with Producer(where, transactional_id="named", **given) as producer, producer.transaction() as named:
            named.send("orders", b"3")
        async with Consumer(where, "orders", **given) as consumer:
            stream = aiter(consumer)
            assert [(await anext(stream)).value for _ in range(3)] == [b"1", b"2", b"3"]
        async with GroupConsumer(where, "g", ["orders"], auto_offset_reset="earliest", **given) as member:
            found: list[Any] = []
            while len(found) < 3:
                found += await member.poll(timeout=1.0)
            await member.commit()
        async with Admin(where, **given) as admin:
            assert (await admin.identity()).principal == "User:alice"
            assert [topic.name for topic in await admin.list_topics()] == ["orders"]


@pytest.mark.parametrize("kind", ["token", "password", "certificate"])
async def test_everything_works_with_each_credential_s12(secured: Secured, tmp_path: Path, kind: str) -> None:
    token = await allowed_user(secured, "alice")
    given = settings(secured)
    if kind == "token":
        given["credentials"] = Credentials(token=token)
    elif kind == "password":
        given["credentials"] = Credentials(user="alice", password=PASSWORD)
    else:
        certificate, key = secured.authority.sign("URI:raftlog:/user/alice")
        for name, content in (("alice.pem", certificate), ("alice.key", key)):
            (tmp_path / name).write_bytes(content)
        given |= {"tls_certificate": str(tmp_path / "alice.pem"), "tls_key": str(tmp_path / "alice.key")}
    await use(secured, **given)


async def test_refusals_are_final_errors_s11(secured: Secured) -> None:
    where, token = bootstrap(secured), await secured.new_user("alice")
    await secured.administer("POST", "/v1/topics", {"name": "orders", "partitions": 1})
    for given, code in ((settings(secured), "unauthenticated"), (settings(secured, token), "authorization_failed")):
        async with asyncio.timeout(PATIENCE_S):
            producer, consumer = Producer(where, **given), Consumer(where, "orders", **given)
            for refused in (producer.send_and_wait("orders", b"1"), anext(aiter(consumer))):
                with pytest.raises(InvalidRequest) as error:
                    await refused
                assert error.value.code == code and token not in error.value.detail
            await producer.close(flush=False)
            await consumer.close()
    described = await secured.administer("GET", "/v1/topics/orders/partitions/0/offsets")
    assert described["latest"] == 0, "nothing was appended"


async def test_a_revoked_token_ends_the_work_and_a_new_one_in_its_file_continues_it_s12(
    secured: Secured, tmp_path: Path
) -> None:
    token, file = await allowed_user(secured, "alice"), tmp_path / "token"
    file.write_text(token)
    given = settings(secured, credentials=Credentials(token_file=str(file)))
    path = "/v1/users/alice/tokens"
    async with asyncio.timeout(PATIENCE_S):
        producer, consumer = Producer(bootstrap(secured), **given), Consumer(bootstrap(secured), "orders", **given)
        await producer.send_and_wait("orders", b"1")
        assert (await anext(aiter(consumer))).value == b"1"
        fresh = (await secured.administer("POST", path, {}))["token"]
        file.write_text(fresh)
        await secured.administer("DELETE", f"{path}/{token.split('_')[1]}")
        await producer.send_and_wait("orders", b"2")
        assert (await anext(aiter(consumer))).value == b"2"
        await secured.administer("DELETE", f"{path}/{fresh.split('_')[1]}")
        with pytest.raises(InvalidRequest, match="unauthenticated"):
            while True:  # the node ends the stream within a second
                await producer.send_and_wait("orders", b"3")
        with pytest.raises(InvalidRequest, match="unauthenticated"):
            while True:
                await anext(aiter(consumer))
        await producer.close(flush=False)
        await consumer.close()


async def test_sparks_tasks_take_the_token_from_a_file_s12(secured: Secured, tmp_path: Path) -> None:
    token = await allowed_user(secured, "alice")
    for kind, name in (("transactional_id", "spark"), ("topic", "orders")):
        rule = {"principal": "User:alice", "operation": "all", "resource_type": kind, "name": name}
        await secured.administer("POST", "/v1/acls", {"acls": [{**rule, "pattern_type": "prefixed"}]})
    (tmp_path / "token").write_text(token)
    told = {
        "raftlog.bootstrap.servers": bootstrap(secured),
        "raftlog.tls.authority": str(secured.folder / "authority.pem"),
        "raftlog.token.file": str(tmp_path / "token"),
    }
    columns, work = find([("value", "binary")], "orders", False), MicroBatch("q", "sink", 0)
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"a", b"b"])})

    def run() -> list[bytes]:
        writing = sink_options.parse(told | {"topic": "orders"}, streaming=True)
        wanted = publication([sink_task.write(writing, columns, work, 0, iter([rows]))], 0)
        assert wanted is not None
        shared = connections.shared(writing.cluster)
        assert shared.run(lambda: sink_decision.publish(shared.api, writing, wanted))
        reading = source_options.parse(told | {"subscribe": "orders"}, streaming=False)
        batches = [
            batch for one in plan(reading, Restrictions()) for batch in executor.read(reading, executor.Task(one))
        ]
        shared.close()
        return [value for batch in batches for value in batch.column("value").to_pylist()]

    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.to_thread(run) == [b"a", b"b"]


async def test_the_command_line_takes_the_token_from_a_profile_s12(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("RAFTLOG_TLS_AUTHORITY", str(secured.folder / "authority.pem"))

    async def command(*arguments: str, given: bytes = b"", code: int = 0) -> str:
        child = start(*arguments, bootstrap=bootstrap(secured))
        out, err = await asyncio.to_thread(child.communicate, given, PATIENCE_S)
        assert child.returncode == code, err
        assert secured.administrator.encode() not in out + err
        return out.decode() or err.decode()

    assert "give a token (RAFTLOG_TOKEN or --token-file)" in await command("whoami", code=1)
    await command("--token-file", "-", "profile", "create", "here", given=secured.administrator.encode())
    assert "admin" in await command("--profile", "here", "whoami")
    await command("--profile", "here", "topic", "create", "t")
    await command("--profile", "here", "user", "create", "alice", "--password-file", "-", given=PASSWORD.encode())
    short = await command("--profile", "here", "user", "create", "bob", "--password-file", "-", given=b"short", code=1)
    assert "8" in short
    denied = await command(
        "--profile",
        "here",
        "acl",
        "check",
        "--principal",
        "User:alice",
        "--operation",
        "Write",
        "--topic",
        "t",
        code=10,
    )
    assert "no" in denied
    await command("--profile", "here", "acl", "create", "--allow-principal", "User:alice", "--producer", "--topic", "t")
    as_alice = ("--user", "alice", "--password-file", str(tmp_path / "password"))
    (tmp_path / "password").write_text(PASSWORD)
    assert "1 record sent" in await command(*as_alice, "produce", "t", given=b"a record\n")
    refused = await command(*as_alice, "consume", "t", "--from", "earliest", "--max-records", "1", code=1)
    assert "raftlog acl create" in refused
    made = json.loads(await command(*as_alice, "token", "create", "-o", "json"))
    assert made["user"] == "alice" and made["token"].startswith("rlt_")
