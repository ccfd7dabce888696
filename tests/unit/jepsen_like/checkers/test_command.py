"""`python -m jepsen_like check`: one line of JSON, and exit codes."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jepsen_like.__main__ import main

GOOD = b'{"index":0,"process":0,"type":"invoke","f":"read"}\n{"index":1,"process":0,"type":"ok","f":"read","value":0}\n'
BAD = GOOD.replace(b'"value":0', b'"value":9')


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(raw: bytes, *arguments: str) -> tuple[int, Any, str]:
        (tmp_path / "history").write_bytes(raw)
        try:
            code = main(["check", str(tmp_path / "history"), *arguments])
        except SystemExit as ended:
            assert isinstance(ended.code, int)
            code = ended.code
        out, err = capsys.readouterr()
        assert out.count("\n") <= 1
        return code, msgspec.json.decode(out) if out else None, err

    return run


def test_a_verdict_is_one_line_and_an_exit_code(run: Any) -> None:
    assert run(GOOD, "--model", "cas-register") == (0, {"valid": True, "anomalies": {}}, "")
    code, told, _ = run(BAD, "--model", "cas-register")
    assert (code, told["valid"], list(told["anomalies"])) == (1, False, ["nonlinearizable"])


def test_a_checker_that_gives_up_has_no_verdict(run: Any) -> None:
    code, told, _ = run(GOOD, "--model", "cas-register", "--steps", "0")
    assert (code, told["valid"]) == (2, "unknown")


@pytest.mark.parametrize(
    ("raw", "arguments", "told"),
    [
        (b"{", ("--model", "kafka"), "line 1 is not an operation"),
        (GOOD, ("--model", "mutex"), "a mutex does not"),
        (GOOD, ("--model", "wings"), "invalid choice"),
        (GOOD, (), "--model"),
        (GOOD, ("--model", "kafka", "--format", "json"), "the file is not JSON"),
    ],
)
def test_wrong_arguments_are_reported(run: Any, raw: bytes, arguments: tuple[str, ...], told: str) -> None:
    code, shown, err = run(raw, *arguments)
    assert code == 3
    assert shown is None or ((shown["valid"], shown["anomalies"]) == ("unknown", {}) and told in shown["error"])
    assert told in err and "Traceback" not in err


def test_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "/nowhere/at/all", "--model", "kafka"]) == 3
    assert "No such file" in capsys.readouterr().err


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BAD)))
    assert main(["check", "-", "--model", "cas-register"]) == 1
    assert '"valid":false' in capsys.readouterr().out
