"""Every setting says what it means, in which unit, within which range, and when a change takes effect."""

from __future__ import annotations

from dataclasses import fields

import msgspec
import pytest

from raftlog.config import NodeConfig, TimingConfig, TopicConfig, load_node_config
from raftlog.errors import InvalidRequest
from raftlog.settings import Setting, node_sections, topic_settings

NODE = [setting for section in node_sections() for setting in section.settings]
ALL = [*NODE, *topic_settings()]
NUMBERS = {"whole number", "number"}


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.name)
def test_every_setting_is_described(setting: Setting) -> None:
    assert setting.meaning.endswith(".") and setting.meaning[0].isupper() | (setting.meaning[0] == "`")
    assert setting.type and setting.default and setting.range and setting.effect
    if setting.type in NUMBERS:
        assert setting.unit != "-", "a number needs a unit"
        assert " to " in setting.range, "a number needs both bounds"


def test_every_section_is_described() -> None:
    names = [section.name for section in node_sections()]
    assert names[:3] == ["", "api", "data"] and "security.oidc" in names and "peers.<node id>" in names
    assert all(section.meaning.endswith(".") for section in node_sections())


def test_no_setting_is_left_out() -> None:
    names = [setting.name for setting in ALL]
    assert len(set(names)) == len(names)
    for kind, prefix in ((NodeConfig, ""), (TimingConfig, "timing.")):
        for field in msgspec.structs.fields(kind):
            own = f"{prefix}{field.name}"
            assert any(name == own or name.startswith(f"{own}.") for name in names), own
    assert len(topic_settings()) == len(fields(TopicConfig))


def test_texts_of_some_settings() -> None:
    by_name = {setting.name: setting for setting in ALL}
    session = by_name["timing.broker_session_ms"]
    assert (session.default, session.unit, session.range) == ("900", "milliseconds", "1 to 86,400,000")
    assert by_name["tls.certificate"].default == "required in its section"
    assert "within seconds" in by_name["tls.certificate"].effect
    assert by_name["log_level"].range == '`"debug"`, `"info"`, `"warning"`, `"error"`'
    assert by_name["min.insync.replicas"].default == "a majority of the replicas"
    assert by_name["disk_reserved_bytes"].range == "0 to 2^40"
    assert by_name["segment.bytes"].range == "1,024 to 2^31 - 1"
    assert by_name["min.cleanable.dirty.ratio"].range == "0 to 1"


def test_the_names_are_those_that_a_file_has() -> None:
    """A value of another type is refused under the same name."""
    for setting in NODE:
        if "<" in setting.name or setting.section in ("tls", "security.oidc"):
            continue
        with pytest.raises(InvalidRequest, match=rf"line 1: {setting.name} (must be|is a section)"):
            load_node_config(f"{setting.name} = 1979-05-27")
