"""The checks of one node's files, settings and addresses, without a node."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.broker.identity import init_data_folder
from raftlog.cli.doctor.findings import Finding
from raftlog.cli.doctor.node_files import bind_address, check_addresses, check_folder, check_settings, is_locked
from raftlog.cli.nodes.node_settings import load_settings
from raftlog.model import Endpoint
from raftlog.system.disk import LocalDisk
from tests.support.cli_runner import run

VOTERS = {0: Endpoint("127.0.0.1", 19641), 1: Endpoint("127.0.0.1", 19651), 2: Endpoint("127.0.0.1", 19661)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A prepared data folder beside a `node.toml`."""
    init_data_folder(str(tmp_path / "data"), cluster_id="c", node_id=0, voters=VOTERS)
    (tmp_path / "data").chmod(0o700)
    return tmp_path


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which something listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def write(folder: Path, text: str) -> str:
    path = folder / "node.toml"
    path.write_text(f'data_folder = "data"\n{text}')
    return str(path)


def levels(findings: list[Finding]) -> dict[str, str]:
    return {one.text: one.level for one in findings}


def addresses(folder: Path, text: str, *, runs: bool = False, silent: tuple[int, ...] = ()) -> list[Finding]:
    _, identity, _ = check_folder(str(folder / "data"))
    settings = load_settings(write(folder, text))
    return check_addresses(
        settings, identity, runs=runs, dial=lambda at: "Connection refused" if at.port in silent else None
    )


class TestFolder:
    def test_a_good_one(self, folder: Path) -> None:
        findings, identity, runs = check_folder(str(folder / "data"))
        assert identity is not None and identity.node_id == 0 and not runs
        assert [one.level for one in findings] == ["ok"] and "no node runs on it" in findings[0].text

    @pytest.mark.parametrize(("mode", "level"), [(0o777, "problem"), (0o770, "problem"), (0o755, "warning")])
    def test_modes(self, folder: Path, mode: int, level: str) -> None:
        (folder / "data").chmod(mode)
        findings, _, _ = check_folder(str(folder / "data"))
        assert findings[0].level == level and "chmod" in findings[0].remedy

    def test_one_that_is_missing_or_not_prepared(self, tmp_path: Path) -> None:
        assert check_folder(str(tmp_path / "none"))[0][0].level == "problem"
        findings, identity, _ = check_folder(str(tmp_path))
        assert identity is None and any("is not prepared" in one.text for one in findings)

    def test_a_running_node_is_seen_by_its_lock_which_stays_free_otherwise(self, folder: Path) -> None:
        data = str(folder / "data")
        with_lock = LocalDisk(data).lock("lock")
        assert is_locked(data) and check_folder(data)[2]
        with_lock.close()
        assert not is_locked(data)
        assert not is_locked(data, "/none"), "a system that does not say"


class TestAddresses:
    GOOD = '[api.listen]\nhost = "127.0.0.1"\nport = 19640\n[data.listen]\nhost = "127.0.0.1"\nport = 19641\n'

    def test_a_node_that_runs_and_its_peers(self, folder: Path) -> None:
        found = addresses(folder, self.GOOD, runs=True)
        assert [one.level for one in found] == ["ok"] * 4

    def test_silent_peers_are_a_warning_and_an_own_address_a_problem(self, folder: Path) -> None:
        found = levels(addresses(folder, self.GOOD, runs=True, silent=(19641, 19651)))
        assert found["voter 1 cannot be reached at 127.0.0.1:19651: Connection refused"] == "warning"
        (text,) = [text for text, level in found.items() if level == "problem"]
        assert "announces for data, 127.0.0.1:19641, cannot be reached" in text

    def test_no_port_is_a_problem(self, folder: Path) -> None:
        nowhere = self.GOOD.replace("19640", "0").replace("19641", "0")
        found = [one for one in addresses(folder, nowhere) if one.level == "problem"]
        assert len(found) == 2 and all("listens on another one after every start" in one.text for one in found)

    def test_a_voter_that_listens_elsewhere_than_the_others_dial(self, folder: Path) -> None:
        other = self.GOOD.replace("19641", "19741")
        (found,) = [one for one in addresses(folder, other, runs=True) if one.level == "problem"]
        assert "dial this node at 127.0.0.1:19641" in found.text and "19741" in found.text

    def test_peers_are_dialed_where_the_settings_say(self, folder: Path) -> None:
        text = f'{self.GOOD}[peers.1]\ndata = {{ host = "127.0.0.1", port = 7 }}\n'
        found = levels(addresses(folder, text, runs=True, silent=(7,)))
        assert found["voter 1 cannot be reached at 127.0.0.1:7: Connection refused"] == "warning"

    def test_a_port_that_is_taken(self, folder: Path, taken: int) -> None:
        text = f"[api.listen]\nport = {taken}\n[data.listen]\nport = 19641\n"
        (found,) = [one for one in addresses(folder, text) if one.level == "problem" and one.area == "addresses"]
        assert f"cannot listen at 127.0.0.1:{taken}: Address already in use" in found.text
        assert bind_address(Endpoint("127.0.0.1", 0)) is None


class TestSettings:
    def test_unwise_ones(self, folder: Path) -> None:
        text = 'disk_reserved_bytes = 0\n[security]\ninsecure = true\n[api.listen]\nhost = "10.0.0.1"\nport = 1\n'
        text += "[data.listen]\nport = 2\n"
        found = check_settings(load_settings(write(folder, text)))
        assert [one.level for one in found] == ["ok", "warning", "warning"]
        assert found[1].text.startswith("api.listen: everybody")


class TestCommand:
    def test_a_node_that_is_down_is_examined_and_problems_are_exit_code_1(self, folder: Path) -> None:
        path = write(folder, TestAddresses.GOOD)
        good = run("doctor", "--config", path, bootstrap=None)
        assert "no node runs on it" in good.text
        assert "problems" in good.lines[-1] or "problem" in good.lines[-1]
        (folder / "data").chmod(0o777)
        bad = run("doctor", "--config", path, bootstrap=None)
        assert bad.code == 1
        place = next(i for i, line in enumerate(bad.lines) if "can be changed by other users" in line)
        assert bad.lines[place].startswith("problem") and "→ run `chmod go-w" in bad.lines[place + 1]

    def test_a_wrong_file_of_settings_is_a_problem_with_its_line(self, folder: Path) -> None:
        path = write(folder, f"[timing]\nbroker_sesion_ms = 900\n{TestAddresses.GOOD}")
        result = run("doctor", "--config", path, "-o", "json", bootstrap=None)
        assert result.code == 1
        (found,) = [one for one in result.json["findings"] if one["area"] == "settings"]
        assert found["text"].startswith(f"{path}:3: ") and "did you mean broker_session_ms?" in found["text"]

    def test_a_cluster_that_was_named_and_does_not_answer_is_a_problem(self) -> None:
        result = run("doctor", bootstrap="127.0.0.1:1")
        assert result.code == 1 and "no node answers: cannot connect to 127.0.0.1:1" in result.text
