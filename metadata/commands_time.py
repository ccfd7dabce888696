"""The command by which the cluster's time goes on.

It carries where the controller found the time and where it is to be, so that a copy that comes late, or another
controller's, changes nothing. What is *not* here: what it does (`image_time.py`), and how far it may go at a time and
why (`time_keeper.py`).
"""

from __future__ import annotations

from .command_parts import NaturalField, Part

TIME_FEATURE_LEVEL = 5
"""From which this is proposed at all."""

MAX_STEP_MS = 600_000
"""Of one command, once there is a time: whoever proposes more is wrong about something."""

STAMP_LAG_MS = 60_000
"""A step that is longer is a leap, and no stamp from before a leap is older than the leap itself. So a stamp, which has
the time of the last step before it, lags by this at most: whatever expires is kept for so much longer."""


class AdvanceTime(Part, frozen=True, tag="advance_time.1"):
    """The controller of `term` read `from_ms` in the image and moves the cluster's time to `to_ms`, which may be the
    same. Answered by `Done`; refused in an entry of another term, and where the time is not what it was."""

    term: NaturalField
    from_ms: NaturalField
    """0: there is no time yet; then `to_ms` is what a majority of the voters' wall clocks say."""
    to_ms: NaturalField
    agreed_ms: NaturalField
    """What a majority of the voters' wall clocks say; 0 where no majority agrees."""
