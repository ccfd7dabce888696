"""The machine: versions of Python and packages, limits of the process, memory, and the state of its clock."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
import re
import resource
import sys
from collections.abc import Callable, Iterable

from raftlog.config import MIB
from raftlog.quantities import shown_duration, shown_size
from raftlog.version import __version__

from .findings import Finding, ok, problem, warning

NEWEST_TESTED = (3, 13)
OLDEST = (3, 11)
FEW_DESCRIPTORS = 4_096
ENOUGH_DESCRIPTORS = 65_536
FEW_PROCESSES = 1_024
LITTLE_MEMORY = 512 * MIB
MAX_ERROR_US = 1_000_000
"""Error of the clock, as the kernel estimates it, from which on it is reported, in microseconds."""
TIME_ERROR = 5
"""The state of `adjtimex(2)` while no daemon keeps the clock."""

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*((?:[<>=!~]=?|===)[^;]*)?(;.*)?")
_BOUND = re.compile(r"(==|>=|<)\s*([0-9]+(?:\.[0-9]+)*)")


def check_machine() -> list[Finding]:
    """Return the findings about this machine and this installation."""
    return [*check_python(), *check_packages(), *check_limits(), *check_memory(), *check_clock()]


def check_python() -> list[Finding]:
    version = sys.version_info[:2]
    shown = f"raftlog {__version__} on Python {platform.python_version()}, {platform.platform(terse=True)}"
    if version < OLDEST:
        return [problem("versions", shown, f"install Python {OLDEST[0]}.{OLDEST[1]} or later")]
    if version > NEWEST_TESTED:
        told = f"use Python {NEWEST_TESTED[0]}.{NEWEST_TESTED[1]}, the newest that raftlog is tested with"
        return [warning("versions", shown, told)]
    return [ok("versions", shown)]


def check_packages(
    requirements: Iterable[str] | None = None, installed: Callable[[str], str] = importlib.metadata.version
) -> list[Finding]:
    """Compare the installed packages with what raftlog requires (PEP 508; exact, least and excluded versions)."""
    if requirements is None:
        try:
            requirements = importlib.metadata.requires("raftlog") or ()
        except importlib.metadata.PackageNotFoundError:
            return [warning("versions", "raftlog is not installed as a package", "install it: `pip install raftlog`")]
    wrong = []
    count = 0
    for text in requirements:
        match = _REQUIREMENT.match(text)
        if match is None or "extra" in (match[3] or ""):
            continue
        count += 1
        try:
            version = installed(match[1])
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{match[1]} is not installed")
            continue
        if not _fits(version, match[2] or ""):
            wrong.append(f"{match[1]} {version} is installed, not {(match[2] or '').strip()}")
    if wrong:
        return [problem("versions", f"packages: {'; '.join(wrong)}", "run `pip install --upgrade raftlog`")]
    return [ok("versions", f"all {count} packages are as required")]


def check_limits(limits: Callable[[int], tuple[int, int]] = resource.getrlimit) -> list[Finding]:
    findings = []
    _, hard = limits(resource.RLIMIT_NOFILE)
    remedy = f"raise the hard limit to {ENOUGH_DESCRIPTORS} (LimitNOFILE= of systemd, or `ulimit -Hn`)"
    if hard != resource.RLIM_INFINITY and hard < FEW_DESCRIPTORS:
        findings.append(problem("limits", f"at most {hard} open files: two are needed for each replica", remedy))
    elif hard != resource.RLIM_INFINITY and hard < ENOUGH_DESCRIPTORS:
        findings.append(warning("limits", f"at most {hard} open files: enough for few replicas and clients", remedy))
    else:
        shown = "any number of" if hard == resource.RLIM_INFINITY else f"up to {hard}"
        findings.append(ok("limits", f"{shown} open files"))
    _, processes = limits(resource.RLIMIT_NPROC)
    if processes != resource.RLIM_INFINITY and processes < FEW_PROCESSES:
        told = f"at most {processes} processes and threads of this user"
        findings.append(warning("limits", told, f"raise the limit to {FEW_PROCESSES} or more (LimitNPROC=)"))
    _, size = limits(resource.RLIMIT_FSIZE)
    if size != resource.RLIM_INFINITY:
        told = f"files of at most {shown_size(size)}: segments are larger"
        findings.append(problem("limits", told, "remove the limit of file sizes (LimitFSIZE=infinity)"))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if cores < 2:
        told = "one processor: heartbeats of the quorum compete with all other work"
        findings.append(warning("limits", told, "give the node two processors"))
    else:
        findings.append(ok("limits", f"{cores} processors"))
    return findings


def check_memory(path: str = "/proc/meminfo") -> list[Finding]:
    """Linux only; elsewhere there is no finding."""
    try:
        with open(path, encoding="ascii") as file:
            fields = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in file)}
    except (OSError, ValueError, IndexError):
        return []
    available = fields.get("MemAvailable", 0)
    shown = f"{shown_size(available)} of {shown_size(fields.get('MemTotal', 0))} of memory are available"
    if available < LITTLE_MEMORY:
        remedy = "stop other programs, add memory, or lower fetch_cache_bytes and producer_state_bytes in node.toml"
        return [warning("memory", shown, remedy)]
    return [ok("memory", shown)]


class _Timex(ctypes.Structure):
    """`struct timex` of Linux."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time", ctypes.c_long * 2),
        ("tick", ctypes.c_long),
        ("rest", ctypes.c_long * 32),
    )


def read_clock() -> tuple[bool, int] | None:
    """Return whether the kernel says that the clock is synchronized, and its error in microseconds (adjtimex(2)).

    None if this system cannot say.
    """
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None
    state = _Timex(modes=0)  # only read
    code = adjtimex(ctypes.byref(state))
    return None if code < 0 else (code != TIME_ERROR, int(state.maxerror))


def check_clock(read: Callable[[], tuple[bool, int] | None] = read_clock) -> list[Finding]:
    found = read()
    if found is None:
        return [warning("clock", "this system does not say whether its clock is synchronized", "run chrony or ntpd")]
    synchronized, error_us = found
    remedy = "run chrony, ntpd or systemd-timesyncd (in a container: on its host); records far ahead are refused"
    if not synchronized:
        return [warning("clock", "no daemon keeps the clock of this machine synchronized", remedy)]
    shown = f"synchronized, wrong by at most {shown_duration(error_us / 1000)}"
    return [ok("clock", shown) if error_us < MAX_ERROR_US else warning("clock", shown, remedy)]


def _fits(version: str, bounds: str) -> bool:
    """Return whether a version is within the bounds of a requirement. Parts that are no numbers are ignored."""
    own = _numbers(version)
    for operator, text in _BOUND.findall(bounds):
        wanted = _numbers(text)
        length = max(len(own), len(wanted))
        mine, theirs = ([*one, *[0] * (length - len(one))] for one in (own, wanted))
        if not {"==": mine == theirs, ">=": mine >= theirs, "<": mine < theirs}[operator]:
            return False
    return True


def _numbers(version: str) -> list[int]:
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return [] if match is None else [int(part) for part in match[0].split(".")]
