"""The garbage collector while a world runs: seldom, and only at what the world made.

A world makes objects by the million and throws nearly all of them away without help. Left alone, the collector looks at
the young ones thousands of times a run and at all of them dozens of times, the imported modules' included, and finds
next to nothing. So what is there when a run begins is put out of its sight, and it looks when many more have been made;
what a world leaves behind (its nodes know one another) is collected when the next one begins.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 50_000
"""Made and not thrown away, before the collector looks at them: it bounds what a run may hold in vain."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """For the length of a run."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
