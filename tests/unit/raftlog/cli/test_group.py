"""`raftlog group` with the real HTTP API and a broker in memory behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import rich_click as click

from raftlog.api.groups import JoinGroup
from raftlog.cli.commands.group import parse_duration, parse_place, parse_topics
from raftlog.client import GroupPartition
from raftlog.client.cluster.api import HttpApi
from raftlog.client.groups.api import GroupApi
from raftlog.model import TopicPartition
from raftlog.records.batch import encode
from tests.support.cli_runner import Background, Result, run
from tests.support.client.fake_broker import FakeBroker
from tests.support.http.api_client import Api, running_api


@pytest.fixture
def broker() -> FakeBroker:
    made = FakeBroker()
    topic = made.add_topic("t", 2)
    for partition in range(2):
        log = made.logs[TopicPartition(topic.topic_id, partition)]
        log.append(encode([b"a"] * 10, base_timestamp_ms=0))
    return made


@pytest.fixture
def api(broker: FakeBroker) -> Iterator[Api]:
    with Background(running_api(broker)) as background:
        yield background.cluster


def group(api: Api, *arguments: str, stdin: bytes = b"") -> Result:
    return run("group", *arguments, bootstrap=f"127.0.0.1:{api.port}", stdin=stdin)


@asynccontextmanager
async def group_api(api: Api) -> AsyncIterator[GroupApi]:
    """The API of the group `g`."""
    node = HttpApi(f"127.0.0.1:{api.port}")
    try:
        yield GroupApi(node, "g")
    finally:
        await node.close()


def commit(api: Api, *offsets: int) -> None:
    async def work() -> None:
        committed = {GroupPartition("t", number): offset for number, offset in enumerate(offsets)}
        async with group_api(api) as calls:
            await calls.commit(committed)

    asyncio.run(work())


def join(api: Api) -> str:
    async def work() -> str:
        wanted = JoinGroup(topics=["t"], client_id="app", instance_id="i-1")
        async with group_api(api) as calls:
            return (await calls.join(wanted)).member_id

    return asyncio.run(work())


class TestShow:
    def test_list(self, api: Api) -> None:
        assert group(api, "list").lines == ["GROUP  STATE  #MEMBERS"]
        commit(api, 4)
        assert group(api, "list").table("GROUP")[1] == ["g", "Empty", "0"]
        assert group(api, "list", "-o", "json").json[0]["group"] == "g"

    def test_describe_has_kafkas_columns(self, api: Api) -> None:
        commit(api, 4)
        member = join(api)
        header, first, second = group(api, "describe", "g").table("GROUP")
        assert header == [
            "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST",
            "CLIENT-ID",
        ]  # fmt: skip
        assert first == ["g", "t", "0", "4", "10", "6", member, "127.0.0.1", "app"]
        assert second[:6] == ["g", "t", "1", "-", "10", "-"]

    def test_members_and_state(self, api: Api) -> None:
        member = join(api)
        _, row = group(api, "describe", "g", "--members").table("GROUP")
        assert row == ["g", member, "127.0.0.1", "app", "2", "t:0,1"]
        wide = group(api, "describe", "g", "--members", "-o", "wide").table("GROUP")
        assert dict(zip(*wide, strict=True))["INSTANCE-ID"] == "i-1"
        assert group(api, "describe", "g", "--state", "-o", "json").json["state"] == "Stable"

    def test_an_unknown_group_is_the_callers_error(self, api: Api) -> None:
        result = group(api, "describe", "nobody")
        assert (result.code, result.stderr) == (1, "Error: there is no group 'nobody'\n")


class TestSeek:
    def test_a_plan_changes_nothing(self, api: Api) -> None:
        commit(api, 4, 6)
        planned = group(api, "seek", "g", "--to", "earliest", "--plan")
        assert planned.table("GROUP") == [
            ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET"],
            ["g", "t", "0", "4", "0"],
            ["g", "t", "1", "6", "0"],
        ]
        assert [row[3] for row in group(api, "describe", "g").table("GROUP")[1:]] == ["4", "6"]

    def test_it_asks_for_confirmation_and_seeks(self, api: Api) -> None:
        commit(api, 4, 6)
        assert group(api, "seek", "g", "--shift-by", "-1", stdin=b"n\n").code != 0
        assert [row[3] for row in group(api, "describe", "g").table("GROUP")[1:]] == ["4", "6"]
        assert group(api, "seek", "g", "--shift-by", "-1", stdin=b"y\n").code == 0
        assert [row[3] for row in group(api, "describe", "g").table("GROUP")[1:]] == ["3", "5"]
        assert group(api, "seek", "g", "--to", "9", "--topic", "t:1", "--yes").code == 0
        assert [row[3] for row in group(api, "describe", "g").table("GROUP")[1:]] == ["3", "9"]

    def test_exactly_the_shown_plan_is_executed(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        """While a user reads the plan, the group commits: the seek is refused, and no new plan is made."""
        commit(api, 4, 6)

        def meanwhile(*_: object, **__: object) -> bool:
            commit(api, 5, 6)
            return True

        monkeypatch.setattr("raftlog.cli.commands.group.click.confirm", meanwhile)
        result = group(api, "seek", "g", "--shift-by", "-1")
        assert result.code == 1 and "5 is committed, but the plan was made at 4" in result.stderr
        assert [row[3] for row in group(api, "describe", "g").table("GROUP")[1:]] == ["5", "6"]

    def test_usage(self, api: Api) -> None:
        assert group(api, "seek", "g").code == 2
        assert group(api, "seek", "g", "--to", "latest", "--shift-by", "1").code == 2
        assert group(api, "seek", "g", "--by-duration", "1x").code == 2
        assert group(api, "seek", "g", "--to", "latest", "--topic", "t:x").code == 2

    def test_positions_to_seek_to(self) -> None:
        assert parse_place("earliest", None, None) == ("earliest", 0)
        assert parse_place("latest", None, None) == ("latest", 0)
        assert parse_place("17", None, None) == ("offset", 17)
        assert parse_place("@1000", None, None) == ("timestamp", 1000)
        assert parse_place(None, -3, None) == ("shift", -3)
        assert parse_place(None, None, "PT30M") == ("duration", 1_800_000)
        assert parse_duration("P1DT2H3M4.5S") == 93_784_500
        for wrong in ("P", "PT", "P1DT", "1D", "PT1", "P1Y"):
            with pytest.raises(click.UsageError):
                parse_duration(wrong)
        assert parse_topics(["a", "b:0,2"]) == {"a": None, "b": [0, 2]}
        assert parse_topics([]) is None
        with pytest.raises(click.UsageError):
            parse_topics(["a", "a:1"])


class TestDelete:
    def test_it_shows_asks_and_deletes(self, api: Api) -> None:
        commit(api, 4)
        assert group(api, "delete", "g", "--plan").table("GROUP")[1][:4] == ["g", "t", "0", "4"]
        assert group(api, "delete", "g", stdin=b"n\n").code != 0
        assert group(api, "delete", "g", "--yes").text == "Deleted group g.\n"
        assert group(api, "list").lines == ["GROUP  STATE  #MEMBERS"]

    def test_a_group_with_members_is_not_deleted(self, api: Api) -> None:
        join(api)
        result = group(api, "delete", "g", "--yes")
        assert result.code == 1
        assert "stop them first" in result.stderr


class TestDeleteOffsets:
    def test_it_shows_asks_and_deletes_s8(self, api: Api) -> None:
        commit(api, 4, 6)
        planned = group(api, "delete-offsets", "g", "--topic", "t:1", "--plan")
        assert planned.table("GROUP") == [["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET"], ["g", "t", "1", "6"]]
        declined = group(api, "delete-offsets", "g", "--topic", "t:1", stdin=b"n\n")
        assert declined.code == 1 and "Delete 1 committed offset of group g?" in declined.stderr
        assert [row[3] for row in group(api, "describe", "g").table("GROUP")[1:]] == ["4", "6"]
        done = group(api, "delete-offsets", "g", "--topic", "t:1", "--yes")
        assert done.text == "Deleted 1 committed offset of group g.\n"
        assert [row[2:4] for row in group(api, "describe", "g").table("GROUP")[1:]] == [["0", "4"]]

    def test_what_is_not_there_or_is_read_is_refused(self, api: Api) -> None:
        commit(api, 4)
        assert "has committed no offset there" in group(api, "delete-offsets", "g", "--topic", "t:1", "--yes").stderr
        assert "no topic 'x'" in group(api, "delete-offsets", "g", "--topic", "x", "--yes").stderr
        assert group(api, "delete-offsets", "g", "--yes").code == 2
        member = join(api)
        refused = group(api, "delete-offsets", "g", "--topic", "t", "--yes")
        assert refused.code == 1 and f"member '{member}' of group 'g' reads t/0: stop it first" in refused.stderr


class TestMembers:
    def test_members_are_removed_by_id_or_instance(self, api: Api) -> None:
        member = join(api)
        assert group(api, "remove-members", "g", "--all", "--plan").table("GROUP")[1][:2] == ["g", member]
        assert group(api, "remove-members", "g", "--member", "i-1", "--yes").text == "Removed 1 member from group g.\n"
        assert group(api, "describe", "g", "--state", "-o", "json").json["members"] == []
        again = join(api)
        assert group(api, "remove-members", "g", "--member", again, "--yes").code == 0

    def test_an_unknown_one_is_an_error_and_removes_none(self, api: Api) -> None:
        member = join(api)
        result = group(api, "remove-members", "g", "--member", member, "--member", "i-2", "--yes")
        assert result.code == 1
        assert result.stderr == "Error: group g has no member 'i-2'. Did you mean 'i-1'?\n"
        assert len(group(api, "describe", "g", "--state", "-o", "json").json["members"]) == 1
        assert group(api, "remove-members", "g").code == 2
        assert group(api, "remove-members", "g", "--all", "--member", "i-1").code == 2


class TestExport:
    def test_an_export_can_be_imported_into_another_group(self, api: Api) -> None:
        commit(api, 4, 6)
        exported = group(api, "export", "g")
        assert exported.text == "t,0,4\nt,1,6\n"
        assert group(api, "export", "g", "--topic", "t:1").text == "t,1,6\n"
        planned = group(api, "import", "copy", "-", "--plan", stdin=exported.stdout)
        assert [row[3:] for row in planned.table("GROUP")] == [["CURRENT-OFFSET", "NEW-OFFSET"], ["-", "4"], ["-", "6"]]
        assert "copy" not in group(api, "list").text
        assert group(api, "import", "copy", "-", "--yes", stdin=exported.stdout).code == 0
        assert group(api, "export", "copy").text == exported.text
        back = group(api, "import", "copy", "-", "--yes", stdin=b"# by hand\n\nt,1,2\n")
        assert back.code == 0 and group(api, "export", "copy").text == "t,0,4\nt,1,2\n"

    @pytest.mark.parametrize(
        ("lines", "told"),
        [
            (b"t,0,4\nt;1;6\n", "standard input, line 2: it must be topic,partition,offset"),
            (b"t,0,4\nt,0,5\n", "line 2: t/0 is there twice"),
            (b"\n", "standard input has no offsets"),
            (b"t,0,11\n", "t/0: 11 is not between 0 and 10"),
            (b"t,7,1\n", "topic t has the partitions 0 to 1, not 7"),
            (b"x,0,1\n", "there is no topic 'x'"),
        ],
    )
    def test_a_wrong_line_changes_nothing_s11(self, api: Api, lines: bytes, told: str) -> None:
        commit(api, 4)
        result = group(api, "import", "g", "-", "--yes", stdin=lines)
        assert result.code == 1 and told in result.stderr
        assert group(api, "export", "g").text == "t,0,4\n"
