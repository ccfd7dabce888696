"""What the command line's exit codes mean; scripts match on them."""

from __future__ import annotations

EXIT_FAILED = 1
"""It did not work, or not for all records; standard error says why."""
EXIT_USAGE = 2
"""The command cannot be understood."""
EXIT_UNHEALTHY = 10
"""`cluster health`: something is wrong."""
EXIT_INTERRUPTED = 130
"""Ctrl-C, as shells show SIGINT."""
