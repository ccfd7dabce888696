"""The garbage collector during a run: rare collections, of the world's objects only.

A world creates objects by the million, nearly all of which are freed by reference counting. With default settings the
collector examines young objects thousands of times in a run and all objects dozens of times, including those of the
imported modules, and finds next to nothing. So the objects that exist at the beginning of a run are frozen, and
collections are rare; the garbage that a world leaves (its nodes reference each other) is collected when the next one
begins. All of it must be collected before the freeze, which would keep the rest until the process ends.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 50_000
"""New objects that survive before a collection: this bounds the garbage of a run."""
MOST_COLLECTIONS = 20
"""Bound on the collections before a run, should finalizers create garbage without end."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect rarely for the duration of a run."""
    before = gc.get_threshold()
    _collect_all()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _collect_all() -> None:
    """Collect until nothing is found: a collection that runs finalizers, those of coroutines for example, leaves what
    they have touched to the next one.
    """
    for _ in range(MOST_COLLECTIONS):
        if not gc.collect():
            return
