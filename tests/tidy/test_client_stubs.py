"""The stubs and tables that are generated from the client's classes are up to date."""

from __future__ import annotations

import pytest

from tests.support.client.stubs import ROOT, made


@pytest.mark.parametrize("path", made())
def test_the_generated_files_are_up_to_date(path: str) -> None:
    assert (ROOT / path).read_text() == made()[path], "run `python -P -m tests.support.client.stubs`"
