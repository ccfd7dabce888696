"""The page of a run: the verdict first, then the plan, each anomaly with the operations that prove it, plots, and the
faults with their proofs.

It is made from the files of the run's folder; without an outcome (an interrupted run) the page says so. A simulated
world adds the end of its trace. One file, without scripts or external resources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from jepsen_like.histories.history import Call, Operation, calls, read
from raftlog.errors import InvalidRequest

from ..run_records import Fault, Outcome, RunFolder, RunPlan, read_faults
from . import plots, series, timeline, timeline_svg
from .excerpts import Excerpt, excerpts
from .unseen import TOTAL, unseen

if TYPE_CHECKING:
    import jinja2

TEMPLATES = Path(__file__).parent
TIMELINES_MAX = 3
"""Limit of timelines for one kind of anomaly."""
LOG_LINES_MAX = 40
"""Limit of suspicious log lines shown for each node."""
TELLING = (b"INVARIANT", b"Traceback", b'"level":"error"', b'"level": "error"', b'"level":"critical"')
LINE_CHARACTERS = 600
WORLD_LINES_MAX = 200


@dataclass(frozen=True, slots=True)
class Anomaly:
    """All anomalies of one kind that one checker found."""

    checker: str
    name: str
    count: int
    excerpts: Sequence[Excerpt]
    timelines: Sequence[Drawn | None]
    """Timelines of the first excerpts; None if an excerpt has none."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A timeline and its drawing."""

    shown: timeline.Timeline
    svg: str


@dataclass(frozen=True, slots=True)
class ShownFault:
    """A fault as a row of the table."""

    fault: Fault
    began: float
    lasted: float
    colour: str
    evidence: str


class _Checker(msgspec.Struct):
    """The part of a checker's verdict that the page needs."""

    valid: bool | str | None
    anomalies: dict[str, list[dict[str, Any]]]
    measured: dict[str, Any] | None = None


class _Verdict(msgspec.Struct):
    checkers: dict[str, _Checker] = {}


def write_report(folder: RunFolder) -> Path:
    """Write the page of a run's folder and return its path.

    Raises `InvalidRequest` if the folder is not that of a run, or a plotting library is missing.
    """
    folder.report.write_text(render(folder), encoding="utf-8")
    return folder.report


def render(folder: RunFolder) -> str:
    """Return the page; errors as in `write_report`."""
    if not folder.plan.exists() or not folder.history.exists():
        raise InvalidRequest(
            "invalid_request", f"{folder.path} is not the folder of a run: it has no plan or no history"
        )
    with _naming(folder.plan):
        plan = msgspec.json.decode(folder.plan.read_bytes(), type=RunPlan)
    with _naming(folder.history), folder.history.open("rb") as lines:
        history = list(read(lines))
    with _naming(folder.faults):
        faults = sorted(read_faults(folder.faults), key=lambda one: one.began) if folder.faults.exists() else []
    with _naming(folder.verdict):
        verdict = _verdict(folder.verdict.read_bytes()) if folder.verdict.exists() else {}
    with _naming(folder.outcome):
        outcome = msgspec.json.decode(folder.outcome.read_bytes(), type=Outcome) if folder.outcome.exists() else None
    operations, seconds = series.ended(history), series.length(history)
    known, waiting = calls(history), unseen(history)
    anomalies = list(_anomalies(verdict, history, known, faults, seconds))
    return _template("run.html.j2").render(
        plan=plan,
        outcome=outcome,
        checkers=verdict.get("checkers", {}),
        anomalies=anomalies,
        patterns=timeline_svg.PATTERNS,
        whole=_whole(plan, anomalies, known, faults, seconds),
        faults=_faults(faults),
        void=sum(not fault.evidence for fault in faults),
        throughput=plots.throughput(operations, faults, seconds),
        quantiles=plots.quantiles(operations, faults, seconds),
        latency=plots.latency(operations, faults, seconds),
        unseen=plots.unseen(waiting, operations, faults, seconds) if waiting else "",
        left_unseen=int(waiting[TOTAL][-1][1]) if waiting else 0,
        drawn=min(len(operations), plots.POINTS_MAX),
        operations=len(operations),
        logs=_logs(folder),
        world=_world(folder),
        options=msgspec.json.encode(plan.options).decode(),
    )


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Name the file in the error if it cannot be read. Raises `InvalidRequest`."""
    try:
        yield
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidRequest("invalid_request", f"{file} is damaged: {error}") from None
    except InvalidRequest as error:
        raise InvalidRequest("invalid_request", f"{file} is damaged: {error.detail}") from None


def _verdict(content: bytes) -> dict[str, Any]:
    """Return the verdict as it was written, after a check of its shape. Raises `msgspec.MsgspecError`."""
    msgspec.json.decode(content, type=_Verdict)
    found: dict[str, Any] = msgspec.json.decode(content)
    return found


def _template(name: str) -> jinja2.Template:
    try:
        import jinja2
    except ImportError as error:
        raise InvalidRequest(
            "invalid_request", "reports need jinja2, which is not installed: pip install 'raftlog[chaos]'"
        ) from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def _anomalies(
    verdict: Mapping[str, Any],
    history: Sequence[Operation],
    known: Sequence[Call],
    faults: Sequence[Fault],
    seconds: float,
) -> Iterator[Anomaly]:
    colours = plots.colours(faults)
    for checker, told in verdict.get("checkers", {}).items():
        for name, found in told["anomalies"].items():
            if found:
                shown = excerpts(found, history)
                around = [timeline.around(one.proving, known, faults, seconds) for one in shown[:TIMELINES_MAX]]
                yield Anomaly(checker, name, len(found), shown, [_drawn(one, colours) for one in around])


def _whole(
    plan: RunPlan, anomalies: Sequence[Anomaly], known: Sequence[Call], faults: Sequence[Fault], seconds: float
) -> Drawn | None:
    proving = frozenset(index for anomaly in anomalies for one in anomaly.excerpts for index in one.proving)
    whole = timeline.of_run(proving, known, faults, seconds, clients=plan.processes)
    return _drawn(whole, plots.colours(faults), row=15)


def _drawn(shown: timeline.Timeline | None, colours: Mapping[str, str], row: float = 11) -> Drawn | None:
    return None if shown is None else Drawn(shown, timeline_svg.draw(shown, colours, row=row))


def _faults(faults: Sequence[Fault]) -> list[ShownFault]:
    colours = plots.colours(faults)
    return [
        ShownFault(
            fault,
            fault.began / 1e9,
            (fault.ended - fault.began) / 1e9,
            colours[fault.kind],
            msgspec.json.encode(fault.evidence, enc_hook=repr).decode() if fault.evidence else "",
        )
        for fault in faults
    ]


def _world(folder: RunFolder) -> list[str]:
    """Return the end of a simulated world's trace; empty for other runs."""
    if not folder.world.exists():
        return []
    return folder.world.read_text(encoding="utf-8", errors="replace").splitlines()[-WORLD_LINES_MAX:]


def _logs(folder: RunFolder) -> dict[str, list[str]]:
    """Return node → the last suspicious lines of its log."""
    found: dict[str, list[str]] = {}
    for file in sorted((folder.path / "nodes").glob("*/log.jsonl")):
        with file.open("rb") as lines:
            telling = [line for line in lines if any(mark in line for mark in TELLING)]
        if telling:
            shown = [line.decode(errors="replace").rstrip()[:LINE_CHARACTERS] for line in telling[-LOG_LINES_MAX:]]
            found[file.parent.name] = shown
    return found
