"""`python -m jepsen_like check FILE`: reads a history and decides whether a correct system may have produced it.

    python -m jepsen_like check history.jsonl --model kafka
    python -m jepsen_like check etcd_001.log --model cas-register --format etcd-log
    python -m jepsen_like check cases.json --model kafka --format json --case G1a/basic

The output is one line of JSON: `{"valid": true | false | "unknown", "anomalies": {...}}`. Exit code 0 valid, 1 invalid,
2 unknown (a checker that gave up has not passed anything), 3 an unreadable file or wrong usage. There is one line for
any bytes in a file: if nothing was judged, `{"valid": "unknown", "anomalies": {}, "error": "..."}`.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from jepsen_like.histories.formats import FORMATS, MAX_FILE_BYTES, load
from raftlog.errors import InvalidRequest

from .check import check
from .checkers import linearizability
from .checkers.models import MODELS
from .checkers.verdict import Verdict

EXIT_VALID, EXIT_INVALID, EXIT_UNKNOWN, EXIT_USAGE = 0, 1, 2, 3


class _Parser(argparse.ArgumentParser):
    """argparse exits with 2 after wrong usage, a code with another meaning here."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    parser = _Parser(prog="python -m jepsen_like", description="The fault suite.")
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="decide whether a correct system may have produced a history")
    checking.add_argument("file", help="file with the history; - for standard input")
    checking.add_argument("--model", choices=(*MODELS, "kafka"), required=True)
    checking.add_argument("--format", choices=FORMATS, default="jsonl")
    checking.add_argument("--case", default="", help="id of a case in a json file")
    checking.add_argument(
        "--steps", type=int, default=linearizability.STEPS_MAX, help="budget of a search, after which it gives up"
    )
    chosen = parser.parse_args(arguments)
    code, told = _judged(chosen)
    if "error" in told:
        _say(f"{chosen.file}: {told['error']}")
    sys.stdout.write(json.dumps(_plain(told), separators=(",", ":")) + "\n")
    return code


def _judged(chosen: argparse.Namespace) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the output."""
    try:
        loaded = load(_read(chosen.file), chosen.format, chosen.case)
    except (InvalidRequest, OSError) as error:
        return _not_judged(EXIT_USAGE, str(error))
    except MemoryError as error:
        return _not_judged(EXIT_UNKNOWN, f"the history is too large for this machine's memory: {error!r}")
    except Exception as error:  # noqa: BLE001  whatever it is, no verdict may come of it
        # Readers refuse known mistakes with their own error texts. Any other failure is still the file's fault, and the
        # exit code of a traceback would mean "invalid" for a system that was never judged.
        return _not_judged(EXIT_USAGE, f"the file cannot be read as {chosen.format}: {error!r:.300}")
    try:
        verdict = check(loaded, chosen.model, chosen.format, steps=chosen.steps)
    except InvalidRequest as error:
        return _not_judged(EXIT_USAGE, str(error))
    except Exception as error:  # noqa: BLE001  as above
        # A checker that crashes has found nothing and passed nothing.
        return _not_judged(EXIT_UNKNOWN, f"the checker gave up: {error!r:.300}")
    return EXIT_UNKNOWN if verdict.valid is None else EXIT_VALID if verdict.valid else EXIT_INVALID, verdict.shown


def _not_judged(code: int, why: str) -> tuple[int, dict[str, Any]]:
    return code, {**Verdict(None).shown, "error": why}


def _read(name: str) -> bytes:
    if name == "-":
        raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    else:
        with open(name, "rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise InvalidRequest("invalid_request", f"a history has at most {MAX_FILE_BYTES} bytes")
    return raw


SHOWN_NESTING_MAX = 150
"""Deeper than checkers compare, and far from Python's own limit."""


def _plain(value: Any, depth: int = 0) -> Any:
    """Return the nearest JSON form of a value: a history may contain values that JSON does not have."""
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if depth == SHOWN_NESTING_MAX:
        return "..."
    if isinstance(value, dict):
        return {_key(key, depth + 1): _plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, depth + 1) for one in value]
    if isinstance(value, frozenset | set):
        return sorted(map(repr, value))
    return repr(value)


def _key(key: Any, depth: int) -> str:
    return key if isinstance(key, str) else json.dumps(_plain(key, depth))


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    gc.disable()  # all garbage here is found by reference counting, and there are millions of small objects
    sys.exit(main())
