"""Tokens and passwords on their way into a command: from files, from standard input, or typed without echo."""

from __future__ import annotations

import sys

import rich_click as click

from raftlog.errors import InvalidRequest
from raftlog.security.secrets import Secret

STDIN = "-"
MAX_SECRET_BYTES = 65_536


def read_secret(path: str, what: str) -> Secret:
    """Return the content of a file, or of standard input for `-`, without the end of its line.

    Raises `InvalidRequest` if it cannot be read, is empty, or has several lines. `what` names it for errors.
    """
    shown = "standard input" if path == STDIN else path
    try:
        if path == STDIN:
            content = sys.stdin.buffer.read(MAX_SECRET_BYTES + 1)
        else:
            with open(path, "rb") as file:
                content = file.read(MAX_SECRET_BYTES + 1)
        text = content.decode().removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise InvalidRequest("invalid_request", f"cannot read {what} from {shown}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequest("invalid_request", f"{shown} has no {what}: it is not UTF-8") from None
    if not text or "\n" in text or len(content) > MAX_SECRET_BYTES:
        raise InvalidRequest("invalid_request", f"{shown} must contain {what} alone, on one line")
    return Secret(text)


def ask_secret(prompt: str, *, confirm: bool = False) -> Secret:
    """Ask for a secret on the terminal, without echo; with `confirm` twice.

    Raises `InvalidRequest` if standard input is no terminal, and click's `Abort`.
    """
    if not is_terminal():
        told = f"{prompt.lower()}: standard input is no terminal to ask on; give a file, or - for standard input"
        raise InvalidRequest("invalid_request", told)
    again = f"{prompt} again" if confirm else False
    return Secret(click.prompt(prompt, hide_input=True, confirmation_prompt=again, err=True))


def is_terminal() -> bool:
    """Return whether standard input is a terminal."""
    return sys.stdin.isatty()


def secret_of(path: str | None, what: str, prompt: str, *, confirm: bool = False) -> Secret:
    """Return the secret in a file, or ask for it. Raises as `read_secret` and `ask_secret` do."""
    return ask_secret(prompt, confirm=confirm) if path is None else read_secret(path, what)
