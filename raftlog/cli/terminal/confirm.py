"""Questions before changes. An answer other than yes is an outcome of its own, and no interruption."""

from __future__ import annotations

import rich_click as click
from click.exceptions import Abort

from .exit_codes import EXIT_FAILED


class Declined(click.ClickException):
    """The change was not confirmed, so nothing was changed."""

    exit_code = EXIT_FAILED


def confirm(question: str) -> None:
    """Ask on standard error, and return if the answer is yes.

    Raises `Declined`, also if standard input ends without an answer, and `Abort` for Ctrl-C.
    """
    try:
        agreed = click.confirm(question, err=True)
    except Abort as error:
        if isinstance(error.__context__, EOFError):
            click.echo(err=True)
            told = "nothing was changed: standard input has no answer to the question; --yes skips it"
            raise Declined(told) from None
        raise
    if not agreed:
        raise Declined("nothing was changed: the answer was no")
