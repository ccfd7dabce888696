"""`import raftlog` offers the client, its records and its errors, and loads them only when they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import raftlog
import raftlog.errors


def test_every_name_is_there() -> None:
    for name in raftlog.__all__:
        assert getattr(raftlog, name) is not None
        assert name in dir(raftlog)
    assert raftlog.RaftlogError is raftlog.errors.RaftlogError
    with pytest.raises(AttributeError, match="no attribute 'Produser'"):
        _ = raftlog.Produser  # type: ignore[attr-defined]


def test_the_import_loads_nothing_heavy() -> None:
    program = (
        "import sys, raftlog; assert not {'aiohttp', 'pyarrow', 'msgspec', 'asyncio'} & set(sys.modules);"
        "raftlog.RaftlogError; assert 'aiohttp' not in sys.modules"
    )
    subprocess.run([sys.executable, "-P", "-c", program], check=True, timeout=60)
