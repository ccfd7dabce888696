"""`python -m jepsen_like check FILE`: reads a history, and says whether a system that keeps its word may have it.

    python -m jepsen_like check history.jsonl --model kafka
    python -m jepsen_like check etcd_001.log --model cas-register --format etcd-log
    python -m jepsen_like check cases.json --model kafka --format json --case G1a/basic

One line of JSON: `{"valid": true | false | "unknown", "anomalies": {...}}`. Exit code 0 valid, 1 invalid, 2 unknown (a
checker that gives up has not passed anything), 3 a file or a call that cannot be made sense of.

What is *not* here: simulated clusters (`python -m jepsen_like.simulator`), planted bugs (`... .planted`).
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from raftlog.errors import InvalidRequest

from .checkers import kafka, linearizability
from .checkers.models import MODELS, model
from .checkers.verdict import Verdict
from .history_formats import FORMATS, MAX_FILE_BYTES, Loaded, load

EXIT_VALID, EXIT_INVALID, EXIT_UNKNOWN, EXIT_USAGE = 0, 1, 2, 3


class _Parser(argparse.ArgumentParser):
    """argparse ends a wrong call with 2, which means something else here."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def check(loaded: Loaded, name: str, kind: str, *, steps: int = linearizability.STEPS_MAX) -> Verdict:
    """Raises `InvalidRequest` where the history is none of this model's."""
    if name == "kafka":
        ww_deps = bool(loaded.options.get("ww_deps", False))
        transactional = any(one.f == "txn" for one in loaded.operations)
        return kafka.check(loaded.operations, ww_deps=ww_deps, strict=kind != "json", transactional=transactional)
    return linearizability.check(loaded.operations, model(name, etcd=kind == "etcd-log"), steps=steps)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = _Parser(prog="python -m jepsen_like", description="The fault suite.")
    commands = parser.add_subparsers(dest="command", required=True)
    checking = commands.add_parser("check", help="say whether a history is one that a correct system may have")
    checking.add_argument("file", help="the history; - is standard input")
    checking.add_argument("--model", choices=(*MODELS, "kafka"), required=True)
    checking.add_argument("--format", choices=FORMATS, default="jsonl")
    checking.add_argument("--case", default="", help="which of a json file's cases")
    checking.add_argument(
        "--steps", type=int, default=linearizability.STEPS_MAX, help="of a search, before it gives up"
    )
    chosen = parser.parse_args(arguments)
    try:
        loaded = load(_read(chosen.file), chosen.format, chosen.case)
        verdict = check(loaded, chosen.model, chosen.format, steps=chosen.steps)
    except (InvalidRequest, OSError) as error:
        _say(f"{chosen.file}: {error}")
        return EXIT_USAGE
    except (RecursionError, MemoryError) as error:
        _say(f"{chosen.file}: the checker gave up: {error!r}")
        verdict = Verdict(None)
    sys.stdout.write(msgspec.json.encode(verdict.shown, enc_hook=_shown).decode() + "\n")
    return EXIT_UNKNOWN if verdict.valid is None else EXIT_VALID if verdict.valid else EXIT_INVALID


def _read(name: str) -> bytes:
    if name == "-":
        raw = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    else:
        with open(name, "rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise InvalidRequest("invalid_request", f"a history has at most {MAX_FILE_BYTES} bytes")
    return raw


def _shown(value: object) -> object:
    """What JSON has no word for."""
    return sorted(map(repr, value)) if isinstance(value, frozenset | set) else repr(value)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")


if __name__ == "__main__":
    gc.disable()  # nothing here forms garbage that counting does not find, and there are millions of small objects
    sys.exit(main())
