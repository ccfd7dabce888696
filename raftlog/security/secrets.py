"""Text that must not be shown: passwords, the text of tokens, authorization headers.

Logs, tracebacks with local variables, error texts and dumps show objects by `repr`, `str`, `format` or pickle. A
`Secret` gives `***` to the first three and refuses the fourth. Only an explicit `reveal` gives the text.
"""

from __future__ import annotations

import hmac
from typing import NoReturn, SupportsIndex

HIDDEN = "***"


class Secret:
    """A text that only `reveal` shows. Secrets are compared in constant time and have no hash."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text. Callers keep it out of logs, error texts and anything that outlives the check."""
        return self._text

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        # The time depends on the lengths alone.
        return hmac.compare_digest(
            self._text.encode("utf-8", "surrogatepass"), other._text.encode("utf-8", "surrogatepass")
        )

    __hash__ = None  # type: ignore[assignment]  # a hash would let a secret be a key, compared in variable time

    def __repr__(self) -> str:
        return HIDDEN

    __str__ = __repr__

    def __format__(self, specification: str) -> str:
        return HIDDEN

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a secret is not pickled")

    def __getstate__(self) -> NoReturn:
        raise TypeError("a secret has no state to show")
