"""A node whose fsyncs do nothing, which tests of power failures must detect.

It runs raftlog's command line in this process (`LocalCluster.program`). It fails if the product no longer syncs by
these names, since nothing would then be patched.
"""

from __future__ import annotations

import os

from raftlog.cli.main import main
from raftlog.system import disk, file_system


def nothing(descriptor: int) -> None:
    """Report success without doing anything."""


def nothing_at_all(whole: file_system.FileSystem) -> None:
    """Likewise."""


if __name__ == "__main__":
    assert disk.os is os
    os.fsync = nothing  # type: ignore[assignment]
    os.fdatasync = nothing
    assert disk.LocalFile._dsync
    disk.LocalFile._dsync = 0  # writes that are also fsyncs
    file_system.FileSystem.sync = nothing_at_all  # type: ignore[assignment,method-assign]
    main()
