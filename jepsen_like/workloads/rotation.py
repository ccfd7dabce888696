"""Keys that take turns: one gets so many operations, then others do.

Short histories of many keys can be checked where one long history of a single key cannot (in Jepsen's test etcd's
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
    """Whose turn it is: three, unless the plan wants more, so that many clients hardly ever meet."""
    return min(int(option(plan.options, "keys_at_once", KEYS_AT_ONCE)), KEYS_MAX)


def key_count(plan: RunPlan) -> int:
    """So many keys are needed for all of a run."""
    at_once = keys_at_once(plan)
    blocks = math.ceil(plan.rate * plan.seconds / (OPERATIONS_PER_KEY * at_once))
    return min(max(blocks, 1) * at_once, KEYS_MAX)


def key_at(number: int, count: int, context: Context, at_once: int = KEYS_AT_ONCE) -> int:
    """The key of the n-th operation: by chance one of those whose turn it is."""
    block = number // (OPERATIONS_PER_KEY * at_once)
    first = block * at_once % count
    return first + context.random.randrange(min(at_once, count - first))
