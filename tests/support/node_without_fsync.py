"""A node whose fsyncs do nothing: what no test of power failures may let pass.

Runs raftlog's command line in this process (`LocalCluster.program`). It fails where the product no longer syncs by
these names, since then nothing would be broken here.
"""

from __future__ import annotations

import os

from raftlog.cli.main import main
from raftlog.system import disk, file_system


def nothing(descriptor: int) -> None:
    """Says that it is done."""


def nothing_at_all(whole: file_system.FileSystem) -> None:
    """Likewise."""


if __name__ == "__main__":
    assert disk.os is os
    os.fsync = nothing  # type: ignore[assignment]
    os.fdatasync = nothing
    assert disk.LocalFile._dsync
    disk.LocalFile._dsync = 0  # writes that are fsyncs as well
    file_system.FileSystem.sync = nothing_at_all  # type: ignore[assignment,method-assign]
    main()
