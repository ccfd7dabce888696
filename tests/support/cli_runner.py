"""The command line as users see it: arguments and standard input in; exit code, standard output and standard error out.

`run` calls `main()` in this process, so that errors end as they do for people. `Background` runs a cluster in memory on
another thread's loop, since a command brings its own loop. `start` starts a real child process, for signals and pipes.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from unittest import mock

import msgspec
import pytest
import structlog.testing
from click.testing import CliRunner

from raftlog.cli.main import main
from raftlog.client.cluster.api import HttpApi

T = TypeVar("T")
R = TypeVar("R")

PATIENCE_S = 20.0


@dataclass(frozen=True)
class Result:
    """The result of a command."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.stdout)

    @property
    def yaml(self) -> Any:
        return msgspec.yaml.decode(self.stdout)

    def table(self, first_column: str) -> list[list[str]]:
        """Return the rows of the table whose header begins with this name, including the header."""
        lines = self.lines
        start = next(i for i, line in enumerate(lines) if line.split()[:1] == [first_column])
        end = next((i for i in range(start, len(lines)) if not lines[i]), len(lines))
        return [line.split() for line in lines[start:end]]


def run(*arguments: str, bootstrap: str | None = "127.0.0.1:1", stdin: bytes = b"") -> Result:
    """Run one command to its end. `bootstrap` None: without that option."""
    given = [] if bootstrap is None else ["--bootstrap", bootstrap]
    argv = ["raftlog", *given, *arguments]
    code = 0
    with CliRunner().isolation(input=stdin) as (stdout, stderr, _), mock.patch.object(sys, "argv", argv):
        try:
            main()
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        sys.stdout.flush()
        sys.stderr.flush()
        return Result(code, stdout.getvalue(), stderr.getvalue().decode())


def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the client's retries, so that it gives up quickly if no node answers."""
    defaults = HttpApi.get.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout", 0.3)


class Background(Generic[T]):
    """`with Background(manager) as running: running.cluster ...`: an asynchronous context manager on a thread's own
    loop."""

    def __init__(self, manager: AbstractAsyncContextManager[T]) -> None:
        self._manager = manager
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._quiet = contextlib.ExitStack()
        self.cluster: T

    def call(self, work: Coroutine[Any, Any, R]) -> R:
        """Run this on the cluster's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def __enter__(self) -> Background[T]:
        # Logs of this process would be in the command's standard output.
        self._quiet.enter_context(structlog.testing.capture_logs())
        self._thread.start()
        self.cluster = self.call(self._manager.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._manager.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()
        self._quiet.close()


_CHILD = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from raftlog.cli.main import main; sys.argv[0] = 'raftlog'; main()"
)
"""A shell may have told this process to ignore Ctrl-C, and children inherit that."""


def start(*arguments: str, bootstrap: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start a child process, with pipes for all three streams unless `options` say otherwise."""
    streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", _CHILD, "--bootstrap", bootstrap, *arguments]
    return subprocess.Popen(command, **(streams | options))
