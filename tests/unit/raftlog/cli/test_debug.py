"""`raftlog debug`: dumps with Kafka's names and as JSON lines; bundles without any secret (S12)."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.cli.doctor.bundle import Bundle, environment, listed, redacted, tail
from raftlog.errors import InvalidRequest
from raftlog.records.batch import encode
from tests.support.cli_runner import Background, run
from tests.support.client.fake_broker import FakeBroker
from tests.support.clusters.tls import Authority
from tests.support.http.api_client import Api, running_api

NAME = "00000000000000000000.log"


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    second = encode([b'{"n":2}'], base_timestamp_ms=8, base_offset=1)
    path.write_bytes(encode([b"one"], keys=[b"k"], base_timestamp_ms=7) + second)
    return path


class TestDump:
    def test_lines_have_kafkas_names(self, segment: Path) -> None:
        result = run("debug", "dump-segment", str(segment), "--records", bootstrap=None)
        assert result.code == 0
        assert result.lines[0] == f"Dumping {segment}"
        assert result.lines[1].startswith("baseOffset: 0 lastOffset: 0 count: 1 baseSequence: -1 producerId: -1 ")
        assert "CreateTime: 7 " in result.lines[1] and result.lines[1].endswith("isvalid: true")
        assert result.lines[2] == '| {"offset":0,"timestamp":7,"key":"k","value":"one","headers":[]}'
        assert result.lines[-1] == f"2 batches, {segment.stat().st_size} bytes."

    def test_json_lines(self, segment: Path) -> None:
        result = run("debug", "dump-segment", str(segment), "--json", "--records", bootstrap=None)
        first, second = (msgspec.json.decode(line) for line in result.lines)
        assert (first["kind"], first["base_offset"], first["is_valid"]) == ("batch", 0, True)
        assert second["records"][0]["value"] == {"n": 2}

    def test_a_selection_of_batches_is_still_checked_as_a_whole(self, segment: Path) -> None:
        chosen = run("debug", "dump-segment", str(segment), "--from-offset", "1", bootstrap=None)
        assert [line.split()[1] for line in chosen.lines[1:-1]] == ["1"]
        content = bytearray(segment.read_bytes())
        content[-1] ^= 1
        segment.write_bytes(content)
        damaged = run("debug", "dump-segment", str(segment), "--max-batches", "1", bootstrap=None)
        assert damaged.code == 10
        assert [line.split()[0] for line in damaged.lines[1:-1]] == ["baseOffset:", "PROBLEM"]

    def test_a_torn_tail_is_no_damage(self, segment: Path) -> None:
        segment.write_bytes(segment.read_bytes()[:-3])
        result = run("debug", "dump-segment", str(segment), bootstrap=None)
        assert result.code == 0 and "torn tail" in result.text

    def test_a_missing_file_is_a_usage_error_without_advice_to_retry(self, tmp_path: Path) -> None:
        result = run("debug", "dump-segment", str(tmp_path / NAME), bootstrap=None)
        assert result.code == 2 and "does not exist" in result.stderr and "retry" not in result.stderr


KEY = Authority().pair[1].decode()
TOKEN = "rlt_abcdefghijkl_secret-part-of-it_1"
JWT = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJl"
SECRETS = {
    TOKEN: f"the caller sent {TOKEN} twice",
    "aHVudGVyMjpodW50ZXIy": "authorization: Basic aHVudGVyMjpodW50ZXIy",
    JWT: f"Authorization: Bearer {JWT}",
    "hunter2": '{"user":"alice","password":"hunter2"}',
    "correct horse": 'passphrase = "correct horse"',
    "s3cr3t-of-toml": "client_secret = 's3cr3t-of-toml'",
    "in-a-url-9": "https://alice:in-a-url-9@idp.example.org/keys",
    "fyrtio-tva": "RAFTLOG_PASSWORD=fyrtio-tva",
    KEY.splitlines()[2]: KEY,
    KEY.splitlines()[1]: KEY[: len(KEY) // 2],
}
"""Secret → a text in which it may come."""


class TestRedaction:
    @pytest.mark.parametrize("secret", SECRETS, ids=range(len(SECRETS)))  # one of them is made by chance
    def test_every_form_of_a_secret_is_removed_s12(self, secret: str) -> None:
        assert secret in SECRETS[secret]
        assert secret not in redacted(f"before\n{SECRETS[secret]}\nafter")

    def test_the_rest_stays(self) -> None:
        kept = [
            '{"event":"started","token_id":"4kq7x2mzb3ra","port":9640}',
            'key = "node-0.key"',
            'token_file = "/etc/raftlog/token"',
            'key_separator: "="',
            "topic payments, key k",
        ]
        assert redacted("\n".join(kept)) == "\n".join(kept)

    @given(st.text())
    def test_any_text_is_taken(self, text: str) -> None:
        assert TOKEN not in redacted(f"{text}{TOKEN}")

    def test_variables(self) -> None:
        given = {"RAFTLOG_TOKEN": TOKEN, "RAFTLOG_BOOTSTRAP": "h:1", "HOME": "/root", "AWS_SECRET": "x"}
        assert environment(given) == "RAFTLOG_BOOTSTRAP=h:1\nRAFTLOG_TOKEN is set\n"


class TestBundle:
    @pytest.fixture
    def api(self) -> Iterator[Api]:
        broker = FakeBroker()
        broker.add_topic("orders", 1)
        with Background(running_api(broker)) as background:
            yield background.cluster

    def test_it_has_everything_but_secrets_s12(self, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        monkeypatch.setenv("RAFTLOG_TOKEN", TOKEN)
        node = tmp_path / "node"
        (node / "data").mkdir(parents=True)
        (node / "node.key").write_text(KEY)
        (node / "data" / "users").write_text("argon2id-hash-of-alice")
        (node / "node.toml").write_text(
            '# password = "hunter2"\ndata_folder = "data"\napi.listen.port = 1\ndata.listen.port = 2\n'
        )
        log = node / "log.jsonl"
        log.write_text("\n".join(SECRETS.values()))
        file = tmp_path / "out.tar.gz"
        result = run(
            "debug", "bundle", "--config", str(node / "node.toml"), "--log", str(log), "--file", str(file),
            "--bootstrap", f"127.0.0.1:{api.port}", bootstrap=None,
        )  # fmt: skip
        assert result.code == 0, result.stderr
        assert file.stat().st_mode & 0o777 == 0o600
        with tarfile.open(file) as archive:
            contents = {one.name: archive.extractfile(one).read().decode() for one in archive}  # type: ignore[union-attr]
        expected = {
            "node.toml",
            "settings.json",
            "doctor.json",
            "data-folder.txt",
            "logs/0-log.jsonl",
            "environment.txt",
        }
        assert {f"out/{name}" for name in (*expected, "cluster/topics.json", "cluster/quorum.json")} <= set(contents)
        assert "orders" in contents["out/cluster/topics.json"]
        assert "users" in contents["out/data-folder.txt"], "its name is listed, its content is not read"
        everything = "\n".join(contents.values())
        assert [secret for secret in (*SECRETS, "argon2id-hash-of-alice") if secret in everything] == []

    def test_without_a_cluster_it_has_the_rest_and_says_so(self, tmp_path: Path) -> None:
        file = tmp_path / "out.tar.gz"
        result = run("debug", "bundle", "--file", str(file))
        assert result.code == 0, result.stderr
        assert "not included: the cluster: cannot connect to 127.0.0.1:1" in result.stderr
        again = run("debug", "bundle", "--file", str(file))
        assert again.code == 1 and "cannot create" in again.stderr, "no file is overwritten"

    def test_only_the_end_of_a_long_log_is_taken_in_whole_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "log"
        path.write_text("".join(f"line {n}\n" for n in range(1000)))
        assert tail(str(path), 25) == "line 998\nline 999\n"
        with pytest.raises(InvalidRequest, match="No such file"):
            tail(str(tmp_path / "none"))

    def test_a_listing_reads_no_file(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "unreadable").touch(mode=0o000)
        lines = listed(str(tmp_path)).splitlines()
        assert [line.split()[-1] for line in lines] == ["a", "a/unreadable"]

    def test_a_name_is_taken_once(self, tmp_path: Path) -> None:
        made = Bundle(str(tmp_path / "x.tar.gz"))
        made.add("a", "1")
        with pytest.raises(AssertionError):
            made.add("a", "2")
        made.close()
