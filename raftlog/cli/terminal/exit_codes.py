"""The command line's exit codes, on which scripts rely."""

from __future__ import annotations

EXIT_FAILED = 1
"""The command failed, at least for some records; standard error says why."""
EXIT_USAGE = 2
"""The arguments are invalid."""
EXIT_UNHEALTHY = 10
"""The cluster is unhealthy, a node must not be stopped, or a check found problems or could not reach every node."""
EXIT_DENIED = 10
"""`acl check`: the request would be refused."""
EXIT_INTERRUPTED = 130
"""Interrupted by Ctrl-C; shells report SIGINT with this code."""
