"""`raftlog server settings` and `check-config`, the page that is made from the settings, and the complete example."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from raftlog.broker.identity import NODE_FILE, STARTS_FILE, init_data_folder
from raftlog.broker.node.main import run_node
from raftlog.cli.commands.server_settings import settings_page
from raftlog.config import NodeConfig, NodeFile
from raftlog.errors import InvalidRequest
from raftlog.model import Endpoint
from raftlog.settings import node_sections, topic_settings
from tests.support.cli_runner import run

ROOT = Path(__file__).parents[4]
LISTEN = """api.listen = { port = 9640 }
data.listen = { host = "127.0.0.1", port = 9641 }
"""


def test_the_page_of_settings_is_current() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == settings_page(), "run `make settings-page`"


def test_settings_are_listed() -> None:
    shown = run("server", "settings").text
    wide = run("server", "settings", "-o", "wide").text
    data = run("server", "settings", "-o", "json").json
    for setting in (*(s for section in node_sections() for s in section.settings), *topic_settings()):
        assert re.search(rf"^{re.escape(setting.name)} ", shown, re.MULTILINE)
        assert setting.meaning.replace("`", "") in wide
    assert {"name": "fsync_threads", "default": "2", "unit": "threads"}.items() <= {s["name"]: s for s in data["node"]}[
        "fsync_threads"
    ].items()
    assert data["topic"][0]["name"] == "retention.ms"
    assert run("server", "settings", "--page").text == settings_page()


# --- The complete example ---------------------------------------------------------------------------------------------

EXAMPLE = ROOT / "deploy" / "node.toml"
SAMPLES = {"data_folder", "allowed_hosts", "allowed_origins", "peers", "tls", "api", "data", "security"}
"""Settings of the example whose values are not the defaults; `security` because of its identity provider."""


def uncommented() -> str:
    """The example with every setting in use."""
    return re.sub(r"^# (?=(?:[a-z_]+ = |\[))", "", EXAMPLE.read_text(), flags=re.MULTILINE)


def test_the_example_is_accepted_as_it_is() -> None:
    file = NodeFile(EXAMPLE.read_text())
    assert file.problems == [] and file.value is not None
    assert (
        msgspec.structs.replace(file.value, data_folder="data", api=NodeConfig().api, data=NodeConfig().data)
        == NodeConfig()
    )


def test_the_example_has_every_setting_with_its_default() -> None:
    file = NodeFile(uncommented())
    assert file.problems == [] and file.value is not None
    for section in node_sections():
        for setting in section.settings:
            path = setting.name.replace("<node id>", "1").split(".")
            assert file.has(*path), f"deploy/node.toml lacks {setting.name}"
    for name in NodeConfig.__struct_fields__:
        if name not in SAMPLES:
            assert getattr(file.value, name) == getattr(NodeConfig(), name), name
    security = msgspec.structs.replace(file.value.security, oidc=None)
    assert security == NodeConfig().security
    assert file.value.tls is not None and not file.value.tls.migrating
    assert file.value.tls.node_name.startswith("URI:") and file.value.tls.api_certificate == ""


# --- check-config -----------------------------------------------------------------------------------------------------


def prepared(tmp_path: Path, settings: str, port: int = 9641) -> str:
    init_data_folder(str(tmp_path / "data"), cluster_id="c", node_id=0, voters={0: Endpoint("127.0.0.1", port)})
    path = tmp_path / "node.toml"
    path.write_text(settings)
    return str(path)


def test_a_right_file_is_valid_and_nothing_is_started(tmp_path: Path) -> None:
    path = prepared(tmp_path, LISTEN)
    done = run("server", "check-config", path)
    assert done.code == 0
    assert f"{path} is valid" in done.text and "node 0 of cluster c" in done.text
    assert not (tmp_path / "data" / STARTS_FILE).exists()
    (tmp_path / "data" / NODE_FILE).unlink()
    assert "not prepared yet" in run("server", "check-config", path).text


def test_a_wrong_file_is_shown_with_lines(tmp_path: Path) -> None:
    path = prepared(tmp_path, f"{LISTEN}fsync_treads = 2\nrack = 1\n")
    done = run("server", "check-config", path)
    assert done.code == 1
    assert done.lines == [
        f"{path}:3: fsync_treads is no setting of the top level; did you mean fsync_threads?",
        f"{path}:4: rack must be a text in quotation marks, not 1",
        f"{path} is not valid",
    ]
    as_json = run("server", "check-config", path, "-o", "json").json
    assert as_json["valid"] is False and len(as_json["problems"]) == 2


def test_the_address_of_a_voter_is_compared(tmp_path: Path) -> None:
    path = prepared(tmp_path, LISTEN, port=9999)
    done = run("server", "check-config", path)
    assert done.code == 1 and f"{path}:2: node 0 is a voter whose address is 127.0.0.1:9999" in done.text


@pytest.mark.parametrize("is_prepared", [False, True])
def test_files_of_tls_that_are_missing_are_found(tmp_path: Path, is_prepared: bool) -> None:
    path = prepared(tmp_path, f'{LISTEN}[tls]\ncertificate = "a.pem"\nkey = "a.key"\nauthority = "b.pem"\n')
    if not is_prepared:
        (tmp_path / "data" / NODE_FILE).unlink()
    done = run("server", "check-config", path)
    assert done.code == 1 and "a.pem" in done.text


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    done = run("server", "check-config", str(tmp_path / "nothing.toml"))
    assert done.code == 1 and "cannot read" in done.stderr


# --- The same at a start ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("", "data.listen.port is missing|api.listen.port is missing"),
        (f"{LISTEN}rack = 1", r"node.toml, line 3: rack must be a text"),
        (
            LISTEN.replace("9641", "9642"),
            "node 0 is a voter whose address is 127.0.0.1:9641 .* it listens at 127.0.0.1:9642",
        ),
        (LISTEN.replace("9641", "0"), "give the data listener no port"),
    ],
)
def test_a_node_with_wrong_settings_does_not_start_and_its_folder_stays(
    tmp_path: Path, settings: str, why: str
) -> None:
    path = prepared(tmp_path, settings)
    before = sorted(path.name for path in (tmp_path / "data").iterdir())
    with pytest.raises(InvalidRequest, match=why):
        run_node(path)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == before
