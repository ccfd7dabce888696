"""A voter's progress: its three states, and that no late or duplicate answer moves it back."""

from __future__ import annotations

import random
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.journal.snapshot_file import Snapshot
from metadata.raft.messages import SNAPSHOT_CHUNK_BYTES
from metadata.raft.progress import WINDOW_BYTES, WINDOW_MESSAGES, Progress, State
from metadata.raft.snapshot_transfer import IncomingSnapshot, OutgoingSnapshot


def replicating(match: int = 10) -> Progress:
    progress = Progress(match=0, next=match + 1)
    progress.on_sent(match, 0, 0)
    progress.on_success(match)
    assert progress.state is State.REPLICATE
    return progress


def test_a_probe_is_one_append_at_a_time() -> None:
    progress = Progress(match=0, next=50)
    assert progress.may_send_entries()
    progress.on_sent(60, 100, 0)
    assert not progress.may_send_entries() and progress.next == 50
    progress.on_rejected(49, 20)
    assert progress.next == 21 and progress.may_send_entries()
    progress.on_sent(30, 100, 0)
    progress.on_success(30)
    assert (progress.state, progress.match, progress.next) == (State.REPLICATE, 30, 31)


def test_the_window_bounds_messages_and_bytes() -> None:
    progress = replicating()
    for number in range(WINDOW_MESSAGES):
        assert progress.may_send_entries()
        progress.on_sent(11 + number, 10, 0)
    assert not progress.may_send_entries()
    progress.on_success(12)
    assert progress.may_send_entries()
    progress = replicating()
    progress.on_sent(11, WINDOW_BYTES, 0)
    assert not progress.may_send_entries()


def test_an_early_answer_does_not_move_next_back_over_entries_in_flight() -> None:
    progress = replicating()
    for last in (20, 30, 40):
        progress.on_sent(last, 10, 0)
    progress.on_success(20)
    assert progress.next == 41 and progress.match == 20
    progress.on_success(15)
    assert progress.next == 41 and progress.match == 20


def test_a_late_rejection_changes_nothing_and_a_true_one_probes_above_the_match() -> None:
    progress = replicating()
    progress.on_sent(20, 10, 0)
    progress.on_rejected(5, 3)
    assert (progress.state, progress.next) == (State.REPLICATE, 21)
    progress.on_rejected(20, 4)
    assert (progress.state, progress.next, progress.match) == (State.PROBE, 11, 10)
    progress.on_rejected(15, 2)
    assert progress.next == 11, "not the answer to this probe"


def test_a_lost_link_sends_again_from_the_match() -> None:
    progress = replicating()
    progress.on_sent(20, 10, 0)
    progress.on_link_lost()
    assert (progress.state, progress.next) == (State.PROBE, 11)
    fresh = Progress(match=0, next=50)
    fresh.on_sent(50, 1, 0)
    fresh.on_link_lost()
    assert fresh.next == 50 and fresh.may_send_entries()


def test_a_snapshot_holds_entries_back_until_it_is_installed() -> None:
    progress = Progress(match=0, next=5)
    progress.send_snapshot(OutgoingSnapshot(Snapshot.of(100, 3, b"state")))
    assert not progress.may_send_entries()
    progress.on_rejected(4, 1)
    assert progress.state is State.SNAPSHOT
    progress.on_installed(100)
    assert (progress.state, progress.match, progress.next) == (State.PROBE, 100, 101)
    progress.on_installed(90)
    assert (progress.match, progress.next) == (100, 101)


EVENTS = ["sent", "success", "rejected", "lost", "installed"]


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 60), st.integers(1, 60))))
def test_match_only_rises_and_next_stays_above_it(events: list[tuple[str, int, int]]) -> None:
    progress = Progress(match=0, next=30)
    for event, index, hint in events:
        before = progress.match
        if event == "sent" and progress.may_send_entries():
            progress.on_sent(progress.next + index, 10, 0)
        elif event == "success" and index < progress.next:
            progress.on_success(index)
        elif event == "rejected":
            progress.on_rejected(index, hint)
        elif event == "lost":
            progress.on_link_lost()
        elif event == "installed" and index < progress.next:
            progress.on_installed(index)
        assert before <= progress.match < progress.next


@given(st.integers(0, 3 * SNAPSHOT_CHUNK_BYTES), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_a_snapshot_arrives_complete_whatever_the_network_does(size: int, seed: int) -> None:
    """Chunks and answers are lost, duplicated and late; a heartbeat asks for the receiver's position."""
    rng = random.Random(seed)
    state = rng.randbytes(size)
    outgoing = OutgoingSnapshot(Snapshot.of(9, 2, state))
    incoming = IncomingSnapshot()
    received = None
    old_replies: list[int] = []
    for _ in range(200):
        chunk = outgoing.chunk(5, probe=rng.random() < 0.5)
        if chunk is None or rng.random() < 0.3:
            continue
        for _ in range(2 if rng.random() < 0.2 else 1):
            received = received or incoming.on_chunk(chunk)
        if received is not None:
            break
        old_replies.append(incoming.held_bytes)
        if rng.random() < 0.7:
            outgoing.on_reply(rng.choice(old_replies) if rng.random() < 0.1 else incoming.held_bytes)
    assert received is not None and received.state == state and received.index == 9


def test_questions_in_flight_do_not_double_a_transfer() -> None:
    """A slow FIFO link: answers arrive five ticks late, and every other tick a heartbeat asks."""
    state = random.Random(1).randbytes(6 * SNAPSHOT_CHUNK_BYTES)
    outgoing, incoming = OutgoingSnapshot(Snapshot.of(9, 2, state)), IncomingSnapshot()
    answers: deque[tuple[int, int]] = deque()
    sent = 0
    for tick in range(400):
        while answers and answers[0][0] <= tick:
            outgoing.on_reply(answers.popleft()[1])
        chunk = outgoing.chunk(5, probe=tick % 2 == 0)
        if chunk is not None:
            sent += len(chunk.data)
            if incoming.on_chunk(chunk) is not None:
                break
            answers.append((tick + 5, incoming.held_bytes))
    else:
        raise AssertionError("it never arrived")
    assert sent == len(state)


def test_a_peer_that_was_sent_everything_needs_no_check() -> None:
    progress = replicating(10)
    assert not progress.has_all(10, 5), "it was not told how much is committed"
    progress.on_sent(10, 0, 5)
    assert progress.has_all(10, 5)
    assert not progress.has_all(11, 5) and not progress.has_all(10, 6)
    progress.on_link_lost()
    assert not progress.has_all(10, 5), "what it has is not known any more"
    progress.send_snapshot(OutgoingSnapshot(Snapshot.of(20, 3, b"state")))
    assert not progress.has_all(10, 5)
