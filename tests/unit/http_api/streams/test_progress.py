"""Whether a reader is still there."""

from __future__ import annotations

from http_api.streams.progress import ReaderProgress


def test_a_reader_that_acknowledges_everything_may_be_idle_for_ever() -> None:
    progress = ReaderProgress(30, 0)
    assert not any(progress.is_stalled(now, 100, 0) for now in range(0, 1000, 15))


def test_a_reader_that_acknowledges_nothing_is_stalled_after_the_patience() -> None:
    progress = ReaderProgress(30, 0)
    assert not progress.is_stalled(0, 100, 0)
    assert not progress.is_stalled(15, 150, 50)
    assert progress.is_stalled(45, 250, 200)
    assert not ReaderProgress(30, 0).is_stalled(29, 50, 50)


def test_a_reader_that_is_behind_and_reads_is_there() -> None:
    progress = ReaderProgress(30, 0)
    assert not any(progress.is_stalled(now, 1_000 * now + 5_000, 5_000) for now in range(1, 1000, 20))
