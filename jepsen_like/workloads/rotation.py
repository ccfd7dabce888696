"""Keys that take turns: a few get a number of operations, then others do.

Short histories of many keys can be checked where one long history of a single key cannot (in Jepsen's tests, etcd's
registers have 200 operations each, Tendermint's 120).
"""

from __future__ import annotations

import math

from ..clients.messages import option
from ..run_records import RunPlan
from .generators import Context

OPERATIONS_PER_KEY = 120
KEYS_AT_ONCE = 3
KEYS_MAX = 120
"""A longer run gives each key more operations."""


def keys_at_once(plan: RunPlan) -> int:
    """Return the number of keys in use at a time: three, or more if the plan wants clients that rarely conflict."""
    return min(int(option(plan.options, "keys_at_once", KEYS_AT_ONCE)), KEYS_MAX)


def key_count(plan: RunPlan) -> int:
    """Return the number of keys that the whole run needs."""
    at_once = keys_at_once(plan)
    blocks = math.ceil(plan.rate * plan.seconds / (OPERATIONS_PER_KEY * at_once))
    return min(max(blocks, 1) * at_once, KEYS_MAX)


def key_at(number: int, count: int, context: Context, at_once: int = KEYS_AT_ONCE) -> int:
    """Return the key of the n-th operation, drawn from those whose turn it is."""
    block = number // (OPERATIONS_PER_KEY * at_once)
    first = block * at_once % count
    return first + context.random.randrange(min(at_once, count - first))
