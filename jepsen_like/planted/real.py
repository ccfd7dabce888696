"""The planted bugs in real clusters: a run for each that shows there, a reason for each that does not. Pure.

A real cluster has one clock, connections that keep their order, disks that sync more than requested, and a few hundred
operations a minute. So it finds bugs whose failure window is long, or is made long by a crafted schedule; bugs that
need several events within milliseconds are found by the simulators. Each hunt is the smallest run that makes the window
long: rounds of one fault if the fault suffices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jepsen_like.run_records import RunPlan

ROUNDS = 10
FEW = 5
"""For schedules of half a minute, of which two or three rounds suffice."""
PATIENCE = {"recovery_s": 30, "last_reads_s": 30}
"""A cluster that has not recovered by then will not, and the hunt is over."""


@dataclass(frozen=True, slots=True)
class Hunt:
    """One run, repeated with other seeds until it finds the bug."""

    workload: str
    nemesis: str
    options: Mapping[str, Any] = field(default_factory=dict)
    rounds: int = ROUNDS
    """0: no rounds, but `seconds` of operations with faults."""
    seconds: float = 5.0
    rate: float = 100.0
    nodes: int = 3
    processes: int = 6

    def plan(self, bug: str, seed: int) -> RunPlan:
        """Return the plan. `bug`: planted in the nodes; empty: none, in a control that must find nothing."""
        nemesis, options = self.nemesis, {**PATIENCE, **self.options}
        if "," in nemesis:
            nemesis, options["nemeses"] = "mixed", nemesis.split(",")
        return RunPlan(
            cell="",
            workload=self.workload,
            nemesis=nemesis,
            nodes=self.nodes,
            seconds=self.seconds,
            rate=self.rate,
            seed=seed,
            processes=self.processes,
            options=options,
            rounds=self.rounds,
            planted=bug,
        )


_CLIENT = "a client with the bug; this one is not in the nodes"
_AT_ONCE = {"hold": [0, 0.5]}
_A_WHILE = {"hold": [2, 4]}
_LEADERS = {"hold": [1.5, 3], "aims": ["leaders"]}
_TRANSACTIONS = {**_LEADERS, "transactions": True, "subscribe": True}
_FORGOTTEN = {"hold": [5, 7]}
"""Long enough that a replica that lost records is elected, written to and read, before the leader returns."""
_HANGING = {"transactions": True, "subscribe": True, "crash_every": 0, "hang_every": 60, "operation_timeout_s": 25}
_LATE = {"late_every": 20, "stall_every": 0, "crash_every": 0}
_SLOW_ANSWERS = {"hold": [2, 3], "aims": ["controller"], "keys_at_once": 24}
"""Others decide the requests in flight without it, and the clients retry them."""

HUNTS: Mapping[str, Hunt] = {
    # Acknowledged too early.
    "log_without_fsync": Hunt("log", "power-all", _AT_ONCE),
    # One partition: an answer comes too early only if the next batch is written during a sync.
    "fetched_counts_as_synced": Hunt(
        "log", "followers-forget", {**_FORGOTTEN, "topics": 1, "partitions": 1}, rounds=FEW
    ),
    "acknowledged_by_the_leader_alone": Hunt("log", "partition-leaders", _A_WHILE),
    "journal_without_fsync": Hunt("metadata-registers", "power-all", _AT_ONCE),
    # A single leader answers before its own sync; with followers, it syncs before it knows of their syncs, and so do
    # they. A set: its lost elements stay lost, while the next write of a register would hide the loss.
    "acknowledged_before_fsync": Hunt("metadata-set", "slow-power-all", _AT_ONCE, rounds=FEW, nodes=1),
    # Shown too early, twice, or no longer.
    "consumers_read_to_the_log_end": Hunt("log", "partition-leaders", _A_WHILE),
    "resends_are_appended": Hunt("log", "kill,partition-leaders", _LEADERS),
    # Many partitions: only a producer's first batch in a partition is accepted twice, later ones get an error.
    "producers_are_not_replayed": Hunt(
        "log",
        "slow-kill",
        {**_AT_ONCE, "aims": ["all"], "partitions": 16, "operation_timeout_s": 30},
        rounds=FEW,
        rate=200.0,
    ),
    # Elections.
    "a_cut_is_not_reported": Hunt("log", "power-rot", _AT_ONCE),
    # Two replicas: the damaged one is up, and the other is down.
    "marked_members_are_elected": Hunt("log", "power-rot-each", {**_AT_ONCE, "replication_factor": 2}, rounds=FEW),
    "unclean_election": Hunt(
        "log", "left-behind", {**_FORGOTTEN, "replication_factor": 2, "min_insync_replicas": 1}, rounds=FEW
    ),
    "no_floor_under_the_isr": Hunt("log", "left-behind", {**_FORGOTTEN, "replication_factor": 2}, rounds=FEW),
    "any_log_may_lead": Hunt("metadata-registers", "partition", {**_A_WHILE, "shapes": ["one"]}),
    "a_move_ends_before_it_is_in_sync": Hunt(
        "log", "move-kill", {"hold": [2, 3], "topics": 1, "partitions": 1, "replication_factor": 2}, rounds=FEW
    ),
    # Reads and retries.
    "reads_are_local": Hunt("group-offsets", "partition", {**_A_WHILE, "shapes": ["one"], "stall_every": 0}),
    # Many clients and keys: a concurrent operation of the same kind on the same key hides a repeated one.
    "retry_without_session": Hunt("topics", "slow-kill", _SLOW_ANSWERS, rounds=FEW, processes=12),
    "answers_are_not_remembered": Hunt("topics", "slow-kill", _SLOW_ANSWERS, rounds=FEW, processes=12),
    # Damage.
    "recovery_without_checksums": Hunt("log", "power-rot-each", _AT_ONCE, rounds=3),
    # The needs of a full disk, and its aftermath.
    "retention_has_no_room": Hunt("log", "disk-full", _A_WHILE, rounds=0, seconds=30.0),
    "a_disk_that_was_short_stays_short": Hunt("log", "disk-full", _A_WHILE, rounds=0, seconds=30.0),
    # A shortage long enough for a new segment. Only a restart would heal it, and none is made.
    "a_shortage_takes_replicas_offline": Hunt(
        "log", "descriptors", {"hold": [6, 8], "quiet": [1, 3]}, rounds=0, seconds=30.0
    ),
    # Clocks.
    "any_clock_is_believed": Hunt(
        "log", "clock", {"hold": [8, 12], "quiet": [1, 3], "retention_past_s": 60}, rounds=0, seconds=90.0
    ),
    # Groups.
    "offset_lowered_by_a_late_commit": Hunt("group-offsets", "pause", {"hold": [1, 2], "stall_every": 0}),
    # Few members: a lost partition returns to its former owner.
    "commit_of_an_older_generation": Hunt("group-offsets", "none", _LATE, rounds=0, seconds=60.0, processes=4),
    "commit_of_an_older_life": Hunt(
        "group-offsets", "none", {**_LATE, "late_every": 8, "stall_every": 60}, rounds=0, seconds=90.0, processes=4
    ),
    # Transactions.
    "marker_before_decision": Hunt("log", "kill,partition-leaders", _TRANSACTIONS),
    "stable_offset_beyond_an_open_transaction": Hunt("log", "kill,partition-leaders", _TRANSACTIONS),
    "new_leader_leaves_old_ones": Hunt("log", "kill", _TRANSACTIONS),
    "offsets_without_the_output": Hunt("log", "none", _HANGING, rounds=0, seconds=60.0),
    "offsets_from_any_start": Hunt("log", "none", _HANGING, rounds=0, seconds=60.0),
    # Topics that are recreated while a node is down.
    "a_stale_replica_of_a_deleted_topic_rejoins": Hunt(
        "topic-lives", "kill", {**_FORGOTTEN, "recreate_every_s": 1, "stall_every": 0}, rounds=0, seconds=45.0
    ),
    # HTTP consumers: their clients cut answers and take them over, and need no further fault.
    "written_counts_as_delivered": Hunt("rest", "none", {"crash_every": 0}, rounds=0, seconds=30.0),
    "empty_commit_without_delivery": Hunt("rest", "none", {"crash_every": 0}, rounds=0, seconds=30.0),
}
"""Bug → the hunt that finds it."""

_MOMENT = "two things within milliseconds of one another, which only a simulator arranges"
_ORDER = "messages that arrive late or twice; over one connection they do neither"
_MINORITY = "a majority that shares its one forgetful voter; only one voter of three is ever damaged here"
_EXT4 = "a file system that forgets names; ext4 syncs a file's name with its data"
_FULL = "a node that decides much, or starts, while its disk is full, which lasts for half a minute here"
_NOT_HUNTED_YET = "a hunt with `disk-full`, which leaves disks full: not made yet"
_UNFORESEEN = "an unforeseen exception; no fault causes one in a real node"
_REMEMBERED = "a producer that is forgotten while it may resend; brokers remember one for a day"
_A_WEEK = "a group without members whose offsets are kept for less time than a node's clock is wrong by"
_NO_WORKLOAD = "a workload that {}; there is none for real clusters"

NOT_HERE: Mapping[str, str] = {
    "offsets_are_stamped_by_the_asked_node": _A_WEEK,
    "offsets_expire_by_the_coordinators_clock": _A_WEEK,
    "one_clock_moves_the_time": _A_WEEK,
    "records_are_stamped_by_any_clock": _NO_WORKLOAD.format("has topics of `LogAppendTime`"),
    "truncates_to_the_high_watermark": "a leader that dies within milliseconds of a follower's next fetch",
    "ends_are_compared_without_epochs": "tails of two epochs that end at the same offset",
    "followers_of_any_epoch_are_heard": _ORDER,
    "acknowledgements_outlive_their_life": _MOMENT,
    "counted_before_it_is_compared": _MOMENT,
    "pushes_are_appended_unchecked": _MOMENT,
    "the_isr_is_not_maximal": _MOMENT,
    "the_floor_counts_who_may_come": _MOMENT,
    "a_proposal_ends_with_its_timeout": "a proposal that is accepted long after its timeout",
    "a_new_leader_exposes_at_once": "a reader in the milliseconds between an election and the next fetch",
    "the_isr_grows_below_the_epoch_start": _MOMENT,
    "deleted_when_the_leader_knows": _NO_WORKLOAD.format("deletes records"),
    "the_isr_grows_with_old_starts": _NO_WORKLOAD.format("deletes records"),
    "a_restarted_leader_resumes_its_epoch": "a leader that restarts before its session expires; a start takes longer",
    "recovery_takes_a_smaller_log": "damage at every member of ISR and commit set; a majority is never damaged here",
    "recovery_takes_the_first_back": "damage at every member of ISR and commit set; a majority is never damaged here",
    "the_commit_set_is_not_asked": "an ISR whose only member never returns",
    "the_commit_set_follows_the_isr": "an ISR whose only member never returns",
    "the_isr_takes_any_incarnation": "a follower that restarts between a proposal and its acceptance",
    "segments_without_folder_fsync": _EXT4,
    "a_round_skips_a_barrier": "power lost while dozens of partitions are written to at once; workloads write to a few",
    "a_late_fsync_counts": _MOMENT,
    "recovered_pages_count_as_synced": "power lost between a restart and the next append, which syncs the whole file",
    "a_repair_asks_nobody": "a damaged replica that is elected while it repairs itself",
    "the_scrubber_looks_at_no_record": "damage that is never read; a reader would find it",
    "retention_beyond_the_high_watermark": _NO_WORKLOAD.format("distinguishes deletion by retention from loss"),
    "compaction_keeps_the_older_record": _NO_WORKLOAD.format("compacts"),
    "producers_are_forgotten_for_room": _REMEMBERED,
    "expired_producers_leave_no_trace": _REMEMBERED,
    "marks_are_not_looked_at": _REMEMBERED,
    "the_mark_is_lost_on_the_way": _REMEMBERED,
    "resends_are_not_marked": _REMEMBERED,
    "what_may_be_there_gets_another_name": _REMEMBERED,
    "the_horizon_is_not_in_snapshots": _REMEMBERED,
    "a_copy_takes_everybody_for_new": _REMEMBERED,
    "open_transactions_expire": _REMEMBERED,
    "a_half_updated_replica_goes_on": _UNFORESEEN,
    "a_broken_job_is_unheard": _UNFORESEEN,
    "a_reset_replica_stays_closed": _UNFORESEEN,
    "term_and_vote_not_stored": "a voter that restarts within one election; a process takes longer to start",
    "truncates_without_conflict": _ORDER,
    "answers_for_the_whole_log": _MOMENT,
    "snapshot_chunk_commits": _MOMENT,
    "answer_of_any_term_counts": _ORDER,
    "votes_are_counted_not_remembered": _ORDER,
    "commits_older_terms_by_counting": "three leaders in a row, each with another majority (Raft, figure 8)",
    "deposed_leader_tells_nobody": "a caller that knows why it got no answer; a client only sees a timeout",
    "lost_disk_is_not_noticed": _MINORITY,
    "lost_end_is_not_noticed": _MINORITY,
    "forgetful_voter_is_taken_for_late": _MINORITY,
    "changes_overtake_one_another": _MOMENT,
    "disk_swapped_in_one_step": _MINORITY,
    "configuration_is_not_in_snapshots": "a change of voters, then a snapshot, and a partition along the old majority",
    "cut_configuration_stays": "a change of voters that a deposed leader began and its successor cut",
    "journal_without_directory_fsync": _EXT4,
    "journal_rewritten_in_place": "a stop within the milliseconds in which a journal is rewritten",
    "journal_without_checksum": _MINORITY,
    "damage_is_cut_like_a_torn_tail": _MINORITY,
    "snapshot_without_fsync": "a file system that renames before it writes; ext4 writes out first",
    "snapshot_without_checksum": _MINORITY,
    "unreadable_snapshot_is_an_empty_state": _MINORITY,
    "snapshot_wipes_the_log": _MINORITY,
    "late_readers_join_a_barrier": _MOMENT,
    "answers_are_not_in_snapshots": "a retry in flight while its leader is replaced by one that installed a snapshot",
    "granted_before_it_was_given_up": "an observation of reads; commits of the former owner are refused in any case",
    "lost_and_read_on": _CLIENT,
    "offsets_of_a_stale_view": "a node that lags behind a commit at the moment when the partition's next owner begins",
    "a_beginning_at_the_end_is_not_committed": _NO_WORKLOAD.format("begins at the end of partitions"),
    "positions_outlive_their_grant": "an observation of positions; to clients, records come again as they always may",
    "a_stale_node_misses_a_consumer": "a request to a node in the milliseconds in which it lags behind a creation",
    "taken_over_in_the_same_epoch": "an observation of owners; to clients, records come again as they always may",
    "a_producer_believes_who_answered_last": _CLIENT,
    "a_reader_believes_who_answered_last": _CLIENT,
    "a_member_opens_topics_by_name": _CLIENT,
    "a_reader_goes_on_in_another_topic": _CLIENT,
    "a_lost_answer_makes_a_new_batch": _CLIENT,
    "names_outlive_their_topic": _CLIENT,
    "late_write_after_abort_accepted": "a write that is in flight for longer than its transaction lives",
    "late_write_joins_the_commit": "a write in flight while its transaction commits; our client waits for its writes",
    "abort_forgotten_before_a_late_commit": "a commit that is in flight for longer than its transaction lives",
    "decision_forgotten_too_early": _MOMENT,
    "the_quorum_has_no_room": _FULL,
    "a_start_has_no_room": _FULL,
    "the_ballast_is_filled_once": _NOT_HUNTED_YET,
    "a_full_disk_keeps_its_leaderships": "writes that have to be accepted while a disk is full; it may heal before",
    "a_repeated_initialisation_fences": "an initialisation whose answer is lost while its client continues",
    "visible_before_its_markers": "a read in the milliseconds between a commit and its markers",
    "half_of_a_staged_commit": "a commit larger than 64 KiB, with offsets or outputs in thousands of partitions",
    "a_refused_change_is_half_done": _NO_WORKLOAD.format("changes users and tokens"),
    "administrators_overwrite_each_other": _NO_WORKLOAD.format("changes users and tokens"),
    "tokens_outlive_their_user": _NO_WORKLOAD.format("changes users and tokens"),
    "a_cluster_without_users_is_new": _NO_WORKLOAD.format("changes users and tokens"),
    "a_snapshot_takes_a_cluster_for_new": _NO_WORKLOAD.format("changes users and tokens"),
    "a_late_retry_makes_a_revoked_token_again": _NO_WORKLOAD.format("changes users and tokens"),
}
"""Bug → what it needs that a real cluster on one machine does not have."""
