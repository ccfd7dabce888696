"""A node in which any use of pickle ends the process at once, with `EXIT_CODE` and a traceback in its log.

It runs raftlog's command line in this process (`LocalCluster.program`). The functions are replaced before any module of
raftlog or pysyncobj is imported, so that no module holds an original; ending the process cannot be suppressed by an
`except`.

Logs keep few entries behind a snapshot, so that in a short test a node that was offline needs one. The time of
snapshots is a setting.
"""

from __future__ import annotations

import _pickle
import os
import pickle
import sys
import traceback
from typing import Any, ClassVar, NoReturn

EXIT_CODE = 86
TRAILING_ENTRIES = 8


def refuse(*args: Any, **kwargs: Any) -> NoReturn:
    """End the process because pickle was used."""
    traceback.print_stack(file=sys.stderr)
    sys.stderr.flush()
    os._exit(EXIT_CODE)


class Refused:
    """The replacement of picklers and unpicklers, from which libraries derive when they are imported."""

    dispatch: ClassVar[dict[int, Any]] = {}
    dispatch_table: ClassVar[dict[Any, Any]] = {}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse()


def close_the_doors() -> None:
    """Replace both implementations. Fails if Python no longer has one of them."""
    for module in (pickle, _pickle):
        for name in ("loads", "load", "dumps", "dump", "Pickler", "Unpickler"):
            assert hasattr(module, name)
            setattr(module, name, Refused if name[0] in "PU" else refuse)
    for name in ("_loads", "_load", "_dumps", "_dump", "_Pickler", "_Unpickler"):
        assert hasattr(pickle, name)
        setattr(pickle, name, Refused if name[1] in "PU" else refuse)


def keep_little() -> None:
    from metadata.raft import pysyncobj_engine

    assert pysyncobj_engine.TRAILING_ENTRIES > TRAILING_ENTRIES
    pysyncobj_engine.TRAILING_ENTRIES = TRAILING_ENTRIES


if __name__ == "__main__":
    close_the_doors()
    keep_little()

    from raftlog.cli.main import main

    main()
