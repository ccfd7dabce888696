"""The generator of `docs/errors.md`, from the table of codes and from the cause and remedy of each.

Run `python docs/site/error_reference.py` after a change of `raftlog/errors.py` or of `docs/site/errors.toml`.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from raftlog.errors import CODES, Applied, Code

HERE = Path(__file__).parent
PAGE = HERE.parent / "errors.md"

HEAD = """\
# Errors

Each error has a stable code. It is the `code` of a problem document of the HTTP API, the `code` of a `RaftlogError` of
the Python client, and the word before the colon in messages of the command line. This page is generated from the table
in `raftlog/errors.py`.

* *Retriable*: the same request may succeed later. Clients retry such errors by themselves, until their timeouts.
* *Outcome unknown*: the request may have taken effect. Read the present state before you repeat it; an idempotent
  producer may repeat it safely. After all other errors, nothing was changed.
"""

SECTIONS: tuple[tuple[str, str], ...] = (
    ("The request", "These errors are the caller's: the same request fails again."),
    ("The environment", "A node, a disk or the network prevented the request; the same request may succeed later."),
    ("Unknown outcome", "The request may have taken effect."),
    ("Faults", "A peer violated the protocol, or raftlog has a bug."),
)


def section_of(code: Code) -> int:
    """Return the index of the section that describes the code."""
    if code.applied is Applied.UNKNOWN:
        return 2 if code.retriable else 3
    return 1 if code.retriable else 0


def page(remedies: dict[str, dict[str, str]]) -> str:
    """Return the text of the page. Raises `ValueError` if the remedies are not those of exactly the existing codes."""
    if remedies.keys() != CODES.keys():
        raise ValueError(f"errors.toml and raftlog/errors.py differ in {sorted(remedies.keys() ^ CODES.keys())}")
    parts = [HEAD]
    for index, (title, about) in enumerate(SECTIONS):
        parts.append(f"## {title}\n\n{about}\n")
        for name, code in CODES.items():
            if section_of(code) == index:
                remedy = remedies[name]
                facts = [f"Status {code.status}", "retriable" if code.retriable else "final"]
                if code.applied is Applied.UNKNOWN:
                    facts.append("outcome unknown")
                parts.append(
                    f"### `{name}`\n\n**{code.title}.** {', '.join(facts)}.\n\n"
                    f"* Cause: {remedy['cause']}\n* Remedy: {remedy['remedy']}\n"
                )
    return "\n".join(parts)


def remedies_of_file() -> dict[str, dict[str, str]]:
    """Return the content of `errors.toml`."""
    return tomllib.loads((HERE / "errors.toml").read_text())


if __name__ == "__main__":
    PAGE.write_text(page(remedies_of_file()))
