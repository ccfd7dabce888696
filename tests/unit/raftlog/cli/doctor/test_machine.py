"""The checks of the machine: versions, limits, memory, clock."""

from __future__ import annotations

import importlib.metadata
import resource
from collections.abc import Mapping
from pathlib import Path

import pytest

from raftlog.cli.doctor.findings import Report, ok, problem, warning
from raftlog.cli.doctor.machine import (
    check_clock,
    check_limits,
    check_machine,
    check_memory,
    check_packages,
    read_clock,
)


def installed(versions: Mapping[str, str]) -> object:
    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    return version


class TestPackages:
    @pytest.mark.parametrize(
        ("requirement", "version", "fits"),
        [
            ("a==0.3.17", "0.3.17", True),
            ("a==0.3.17", "0.3.18", False),
            ("a>=1.1", "1.1.0", True),
            ("a>=1.1", "1.10", True),
            ("a>=1.10", "1.9", False),
            ("a<3,>=2.2", "2.3.1", True),
            ("a<3,>=2.2", "3.0", False),
            ("a", "0.0.1.dev1", True),
            ("a[b,c]>=2", "2.0", True),
            ("a[b,c]>=2", "1.9", False),
        ],
    )
    def test_versions(self, requirement: str, version: str, fits: bool) -> None:
        (finding,) = check_packages([requirement], installed({"a": version}))  # type: ignore[arg-type]
        assert (finding.level == "ok") is fits
        assert fits or (version in finding.text and "pip install" in finding.remedy)

    def test_a_missing_one(self) -> None:
        (finding,) = check_packages(["a>=1", "b>=2; extra == 'spark'", "c[d]>=2; extra == 'docs'"], installed({}))  # type: ignore[arg-type]
        assert finding.level == "problem" and finding.text == "packages: a is not installed"

    def test_this_installation_is_as_it_should_be(self) -> None:
        assert [one.level for one in check_packages()] == ["ok"]


def limits(**given: int) -> object:
    numbers = {getattr(resource, f"RLIMIT_{name}"): value for name, value in given.items()}
    return lambda which: (0, numbers.get(which, resource.RLIM_INFINITY))


class TestLimits:
    @pytest.mark.parametrize(
        ("files", "level"), [(1024, "problem"), (10_000, "warning"), (65_536, "ok"), (resource.RLIM_INFINITY, "ok")]
    )
    def test_open_files(self, files: int, level: str) -> None:
        assert check_limits(limits(NOFILE=files))[0].level == level  # type: ignore[arg-type]

    def test_processes_and_sizes_of_files(self) -> None:
        found = check_limits(limits(NPROC=100, FSIZE=2**20))  # type: ignore[arg-type]
        assert [(one.level, one.text) for one in found if one.level != "ok" and "processor" not in one.text] == [
            ("warning", "at most 100 processes and threads of this user"),
            ("problem", "files of at most 1.0 MiB: segments are larger"),
        ]


class TestMemory:
    def test_little_of_it(self, tmp_path: Path) -> None:
        path = tmp_path / "meminfo"
        path.write_text("MemTotal: 1048576 kB\nMemFree: 1 kB\nMemAvailable: 102400 kB\n")
        (finding,) = check_memory(str(path))
        assert finding.level == "warning" and finding.text == "100.0 MiB of 1.0 GiB of memory are available"
        path.write_text("MemTotal: 1048576 kB\nMemAvailable: 1000000 kB\n")
        assert check_memory(str(path))[0].level == "ok"

    def test_a_system_that_does_not_say(self, tmp_path: Path) -> None:
        assert check_memory(str(tmp_path / "none")) == []


class TestClock:
    @pytest.mark.parametrize(
        ("state", "level"),
        [((True, 1_500), "ok"), ((True, 5_000_000), "warning"), ((False, 16_000_000), "warning"), (None, "warning")],
    )
    def test_states(self, state: tuple[bool, int] | None, level: str) -> None:
        (finding,) = check_clock(lambda: state)
        assert finding.level == level

    def test_the_kernel_is_only_asked(self) -> None:
        state = read_clock()
        assert state is None or state[1] >= 0


def test_every_finding_but_ok_has_a_remedy() -> None:
    assert all(one.remedy for one in check_machine() if one.level != "ok")
    with pytest.raises(AssertionError):
        problem("x", "y", "")


def test_only_problems_make_a_report_unhealthy() -> None:
    assert Report.of([ok("a", "b"), warning("a", "b", "c")]).healthy
    assert not Report.of([ok("a", "b"), problem("a", "b", "c")]).healthy
