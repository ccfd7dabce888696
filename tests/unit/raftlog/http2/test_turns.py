"""Connections that are behind share the time of an iteration (S10)."""

from __future__ import annotations

import pytest

from raftlog.http2.turns import LEAST_TURN_S, LEAST_WORK, TURN_S, WHOLE_TURN, WORK, Turns


def test_a_connection_alone_has_the_whole_turn() -> None:
    turns = Turns()
    assert turns.turn_of("a") == WHOLE_TURN
    turns.note("a", is_behind=True)
    assert turns.turn_of("a") == WHOLE_TURN


def test_those_that_are_behind_share_it_and_a_new_one_has_a_share() -> None:
    turns = Turns()
    for name in "abcd":
        turns.note(name, is_behind=True)
        turns.note(name, is_behind=True)
    assert len(turns) == 4
    assert turns.turn_of("a").seconds == pytest.approx(TURN_S / 4) and turns.turn_of("a").work == WORK // 4
    assert turns.turn_of("new").seconds == pytest.approx(TURN_S / 5)
    for name in "abcdz":
        turns.note(name, is_behind=False)
    assert turns.turn_of("a") == WHOLE_TURN


def test_a_turn_is_never_too_short_to_be_worth_its_iteration() -> None:
    turns = Turns()
    for number in range(1_000):
        turns.note(number, is_behind=True)
    assert (turns.turn_of(0).seconds, turns.turn_of(0).work) == (LEAST_TURN_S, LEAST_WORK)
