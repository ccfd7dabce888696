"""Mutations of a captured conversation, all from one seeded generator. Pure."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

from tests.support.clusters.forged import mutated

from .captures import Capture, any_of

LENGTHS = (0, 1, 4, 255, 2**14, 2**14 + 1, 2**24 - 1, 2**25, 2**31 - 1, 2**32 - 1)
MOST_BYTES = 512 * 1024

Pieces = list[bytes]


def mutate(capture: Capture, others: Sequence[Capture], rng: random.Random) -> Pieces:
    """Return the pieces of a conversation with one or several changes; sometimes with none."""
    pieces = list(capture.pieces)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 8))):
        pieces = rng.choice(CHANGES)(pieces, others, rng)
    return _bounded(pieces)


def _flip(pieces: Pieces, others: Sequence[Capture], rng: random.Random) -> Pieces:
    """Flip some bits of a piece."""
    place = rng.randrange(len(pieces))
    piece = bytearray(pieces[place])
    for _ in range(rng.choice((1, 1, 2, 16))):
        if piece:
            piece[rng.randrange(len(piece))] ^= 1 << rng.randrange(8)
    return [*pieces[:place], bytes(piece), *pieces[place + 1 :]]


def _cut(pieces: Pieces, others: Sequence[Capture], rng: random.Random) -> Pieces:
    """Cut a piece short; what follows it stays, or is cut, too."""
    place = rng.randrange(len(pieces))
    piece = pieces[place][: rng.randrange(len(pieces[place]) + 1)]
    return [*pieces[:place], piece, *(pieces[place + 1 :] if rng.random() < 0.5 else [])]


def _splice(pieces: Pieces, others: Sequence[Capture], rng: random.Random) -> Pieces:
    """Continue within a piece with a part of another conversation."""
    other = any_of(others, rng).pieces
    place, theirs = rng.randrange(len(pieces)), rng.randrange(len(other))
    here, there = (rng.randrange(len(one) + 1) for one in (pieces[place], other[theirs]))
    joined = pieces[place][:here] + other[theirs][there:]
    return [*pieces[:place], joined, *(other[theirs + 1 :] if rng.random() < 0.5 else pieces[place + 1 :])]


def _repeat(pieces: Pieces, others: Sequence[Capture], rng: random.Random) -> Pieces:
    """Send a piece several times."""
    place = rng.randrange(len(pieces))
    return [*pieces[:place], *([pieces[place]] * rng.choice((2, 2, 3, 50))), *pieces[place + 1 :]]


def _reorder(pieces: Pieces, others: Sequence[Capture], rng: random.Random) -> Pieces:
    """Send the pieces in another order."""
    return rng.sample(pieces, len(pieces))


def _drop(pieces: Pieces, others: Sequence[Capture], rng: random.Random) -> Pieces:
    """Leave out a piece."""
    place = rng.randrange(len(pieces))
    return [*pieces[:place], *pieces[place + 1 :]] or [b""]


def _length(pieces: Pieces, others: Sequence[Capture], rng: random.Random) -> Pieces:
    """Write a length where one may be: of a frame, of a message, of a batch, of a header field."""
    place = rng.randrange(len(pieces))
    piece = bytearray(pieces[place])
    width = rng.choice((3, 4))
    if len(piece) >= width:
        at = rng.choice((0, 9, rng.randrange(len(piece) - width + 1)))
        at = min(at, len(piece) - width)
        piece[at : at + width] = struct.pack(">I", rng.choice(LENGTHS))[-width:]
    return [*pieces[:place], bytes(piece), *pieces[place + 1 :]]


def _digits(pieces: Pieces, others: Sequence[Capture], rng: random.Random) -> Pieces:
    """Replace the digits of a number in a text."""
    place = rng.randrange(len(pieces))
    piece = bytearray(pieces[place])
    digits = [at for at, byte in enumerate(piece) if 48 <= byte <= 57]
    if digits:
        piece[at : at + 1] = rng.choice((b"-1", b"0", b"99", b"1e9", b"9" * 30)) if (at := rng.choice(digits)) else b"0"
    return [*pieces[:place], bytes(piece), *pieces[place + 1 :]]


def _message(pieces: Pieces, others: Sequence[Capture], rng: random.Random) -> Pieces:
    """Change the message in a DATA frame, and keep the lengths around it true."""
    place = rng.randrange(len(pieces))
    piece = pieces[place]
    if len(piece) < 13 or piece[3] != 0 or int.from_bytes(piece[:3], "big") != len(piece) - 9:
        return _flip(pieces, others, rng)
    message = mutated(piece[13:], rng)
    size = len(message) + 4
    frame = size.to_bytes(3, "big") + piece[3:9] + len(message).to_bytes(4, "big") + message
    return [*pieces[:place], frame, *pieces[place + 1 :]]


def _noise(pieces: Pieces, others: Sequence[Capture], rng: random.Random) -> Pieces:
    """Insert random bytes."""
    place = rng.randrange(len(pieces) + 1)
    return [*pieces[:place], rng.randbytes(rng.choice((1, 9, 100, 5_000))), *pieces[place:]]


CHANGES: tuple[Callable[[Pieces, Sequence[Capture], random.Random], Pieces], ...] = (
    _flip, _flip, _cut, _splice, _splice, _repeat, _reorder, _drop, _length, _length, _digits, _message, _message,
    _message, _noise,
)  # fmt: skip


def _bounded(pieces: Pieces) -> Pieces:
    """Return the pieces up to `MOST_BYTES` in all."""
    kept, room = [], MOST_BYTES
    for piece in pieces:
        kept.append(piece[:room])
        room -= len(kept[-1])
    return kept
