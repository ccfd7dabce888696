"""Planted bugs that a story finds: each needs a long sequence of events, which chance seldom produces.

A story in `tests/interaction/testdata/` is one such schedule, step by step, with its expected output; with the bug in
the product it ends differently, and its test fails. Simulated clusters look for most of these bugs as well, in long
runs.
"""

from __future__ import annotations

from collections.abc import Mapping

STORIES: Mapping[str, str] = {
    "a_copy_takes_everybody_for_new": "a_resend_that_nobody_can_judge",
    "a_late_fsync_counts": "late_fsync_result",
    "a_proposal_ends_with_its_timeout": "a_proposal_outlives_its_timeout",
    "compaction_keeps_the_older_record": "a_tombstone_and_a_new_leader",
    "deleted_when_the_leader_knows": "delete_records",
    "ends_are_compared_without_epochs": "tails_that_end_alike",
    "followers_of_any_epoch_are_heard": "a_follower_of_an_epoch_that_is_over",
    "recovered_pages_count_as_synced": "recovered_page_cache_is_fsynced",
    "the_commit_set_is_not_asked": "a_pending_member_is_no_member",
    "the_isr_grows_with_old_starts": "reentry_wants_the_start",
    "the_isr_takes_any_incarnation": "reentry_names_the_incarnation",
}
"""Bug → the story whose end it changes."""
