"""Keys that take turns: one gets so many operations, then others do.

Short histories of many keys can be checked where one long history of a single key cannot (in Jepsen's test etcd's
registers have 200 operations each, Tendermint's 120).
"""

from __future__ import annotations

import math

from ..generators import Context
from ..run_records import RunPlan

OPERATIONS_PER_KEY = 120
KEYS_AT_ONCE = 3
KEYS_MAX = 120
"""A longer run gives each key more operations."""


def key_count(plan: RunPlan) -> int:
    """So many keys are needed for all of a run."""
    blocks = math.ceil(plan.rate * plan.seconds / (OPERATIONS_PER_KEY * KEYS_AT_ONCE))
    return min(max(blocks, 1) * KEYS_AT_ONCE, KEYS_MAX)


def key_at(number: int, count: int, context: Context) -> int:
    """The key of the n-th operation: by chance one of those whose turn it is."""
    block = number // (OPERATIONS_PER_KEY * KEYS_AT_ONCE)
    first = block * KEYS_AT_ONCE % count
    return first + context.random.randrange(min(KEYS_AT_ONCE, count - first))
