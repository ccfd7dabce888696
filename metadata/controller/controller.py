"""The controller's decisions: fence silent brokers, unfence returned ones, give every partition a leader.

It runs on the quorum's leader, one `Controller` a term: it is created with empty sessions when the node begins to lead
and dropped when it no longer does, so nothing of one term leaks into the next. `decide(now)` examines the image and the
sessions, and returns commands to propose *with the term*. It is level-triggered: a problem that persists is seen again,
so a lost or refused proposal needs no bookkeeping beyond `settled`, which marks it as no longer in flight.

The controller may be wrong at any time without harm: the image checks every command again where it is applied. It adds
prudence to the rules of `metadata/rules/elections.py`:

* only a broker with a *recent heartbeat* is proposed as leader, not one that merely is not fenced yet;
* a live member of the ISR goes before one of the commit set;
* before a recovery election it waits a while for members that are absent and may have more;
* a stopping broker is fenced once its leaderships have moved, so that no partition is left without a leader;
* once the cluster has been well for a while, it returns leadership to preferred leaders, a few at a time (`moves.py`).

A call costs little when nothing changed, and is bounded when everything did.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice

from metadata.commands.cluster import MAX_ELECTIONS_PER_COMMAND, ElectLeaders, FenceBroker, UnfenceBroker
from metadata.commands.envelope import Command
from metadata.commands.fields import Election
from metadata.commands.replicas import BeginMoves
from metadata.image.image import ClusterImage
from metadata.rules.elections import electable, is_live, members, recovery_winners
from raftlog.model import BrokerId, Incarnation, PartitionRecord, TopicPartition

from .heartbeats import Sessions
from .moves import DEFAULT_IMBALANCE_PERCENT, Moves, PreferredLeaders

MAX_PARTITIONS_PER_DECISION = 1_024
"""The partitions without a leader examined in one call, and leaderships handed over: a few milliseconds."""

LOOK_AGAIN_SECONDS = 0.05
"""The delay before another look at an election whose candidate is not fenced but has sent no heartbeat yet."""

HAND_OVER_SECONDS = 0.5
"""The time that a stopping broker's leaderships may take to move before it is fenced regardless."""


class Controller:
    """The controller of one term."""

    def __init__(
        self,
        image: ClusterImage,
        sessions: Sessions,
        *,
        recovery_patience: float = 3.0,
        rebalance_after: float = 30.0,
        imbalance_percent: int = DEFAULT_IMBALANCE_PERCENT,
    ) -> None:
        """`recovery_patience`: seconds between the first chance of a recovery election and the election, while a
        member that could do better is absent. `rebalance_after`: seconds that a broker must have been unfenced before
        it is handed its preferred leaderships. `imbalance_percent`: of a broker's preferred leaderships, how many
        others may hold before they are handed back (Kafka's `leader.imbalance.per.broker.percentage`)."""
        self._image = image
        self._sessions = sessions
        self._recovery_patience = recovery_patience
        self._fencing: dict[BrokerId, Command] = {}
        """The command in flight for each broker, one at a time."""
        self._electing: set[TopicPartition] = set()
        """Partitions with an election in flight."""
        self._to_look_at: list[TopicPartition] = []
        """The rest of the current pass over the partitions without a leader."""
        self._looked_at_version = -1
        self._look_again_at = math.inf
        self._recoverable_since: dict[TopicPartition, float] = {}
        self._handing_over_since: dict[tuple[BrokerId, Incarnation], float] = {}
        self._to_hand_over: dict[BrokerId, list[TopicPartition]] = {}
        """The rest of the current pass over a stopping broker's leaderships."""
        self._found_in_pass: set[BrokerId] = set()
        """Stopping brokers with a leadership, found in the current pass, that another broker can take."""
        self._nothing_to_hand_over: set[BrokerId] = set()
        """Stopping brokers for which a whole pass found none."""
        self._preferred = PreferredLeaders(image, self._heard_of, rebalance_after, imbalance_percent)
        self._moves = Moves(image, self._heard_of)

    def heartbeat(
        self, broker_id: BrokerId, incarnation: Incarnation, applied_index: int, now: float, *, stopping: bool = False
    ) -> bool:
        """Record a heartbeat; False if it is not from the registered incarnation, which must register again."""
        broker = self._image.brokers.get(broker_id)
        if broker is not None:
            self._sessions.begin(broker_id, broker.incarnation, now)
        return self._sessions.heartbeat(broker_id, incarnation, applied_index, now, stopping=stopping)

    def decide(self, now: float) -> list[Command]:
        """Return the commands to propose; each must be passed to `settled` once its outcome is known, or as unknown."""
        self._sessions.watch(now)
        commands = self._fence_and_unfence(now)
        elections = [*self._hand_overs(now), *self._elections(now)]
        elections += [e for e in self._moves.hand_overs(now) if e.topic_partition not in self._electing]
        if not commands and not elections and not self._electing:
            elections = self._preferred.elections(now)
            begin = self._moves.begin(now)
            commands += [begin] if begin is not None else []
        for start in range(0, len(elections), MAX_ELECTIONS_PER_COMMAND):
            commands.append(ElectLeaders(tuple(elections[start : start + MAX_ELECTIONS_PER_COMMAND])))
        self._electing.update(election.topic_partition for election in elections)
        return commands

    def settled(self, command: Command) -> None:
        """Record that a command of `decide` was applied (whatever the answer), refused or lost."""
        match command:
            case FenceBroker(broker_id) | UnfenceBroker(broker_id):
                if self._fencing.get(broker_id) == command:
                    del self._fencing[broker_id]
            case ElectLeaders(elections):
                for election in elections:
                    self._electing.discard(election.topic_partition)
                    if election.topic_partition in self._image.leaderless:
                        self._looked_at_version = -1
            case BeginMoves():
                self._moves.settled()
            case _:
                raise AssertionError(f"{command} is not the controller's")

    # --- Brokers -----------------------------------------------------------------------------------------------------

    def _fence_and_unfence(self, now: float) -> list[Command]:
        commands: list[Command] = []
        for broker_id in sorted(self._image.brokers):
            broker = self._image.brokers[broker_id]
            incarnation = broker.incarnation
            self._sessions.begin(broker_id, incarnation, now)
            self._preferred.note(broker_id, incarnation, broker.fenced, now)
            if broker_id in self._fencing:
                continue
            command: Command | None = None
            if self._sessions.is_over(broker_id, incarnation, now):
                if self._hands_over(broker_id, incarnation, now):
                    continue
                if not broker.fenced or broker_id in self._image.starting:
                    command = FenceBroker(broker_id, incarnation)
            elif (
                broker.fenced
                and self._sessions.is_heard(broker_id, incarnation, now)
                # Its view shows its own registration (whose index the incarnation is), so it knows what it lost.
                and self._sessions.has_applied(broker_id, incarnation, incarnation)
            ):
                command = UnfenceBroker(broker_id, incarnation)
            if command is not None:
                self._fencing[broker_id] = command
                commands.append(command)
        return commands

    # --- Brokers that stop -------------------------------------------------------------------------------------------

    def _hands_over(self, broker_id: BrokerId, incarnation: Incarnation, now: float) -> bool:
        """Return whether a stopping broker still beats and hands over its leaderships: it need not be fenced yet."""
        broker = self._image.brokers[broker_id]
        if broker.fenced or not self._sessions.is_stopping(broker_id, incarnation, now):
            return False
        since = self._handing_over_since.setdefault((broker_id, incarnation), now)
        if now - since >= HAND_OVER_SECONDS:
            return False
        led = self._image.led_by(broker_id)
        some = islice(led, MAX_PARTITIONS_PER_DECISION)
        if any(self._hand_over(tp, broker_id, now) for tp in some):
            return True
        # The first of many may be those that no other broker can lead: only a pass over all of them finds the others.
        return len(led) > MAX_PARTITIONS_PER_DECISION and broker_id not in self._nothing_to_hand_over

    def _hand_overs(self, now: float) -> Iterator[Election]:
        """Yield elections that move leaderships of stopping brokers to in-sync peers that stay.

        They are bounded for each call, and repeated, since a proposal may be lost.
        """
        for broker_id, incarnation in list(self._handing_over_since):
            broker = self._image.brokers.get(broker_id)
            if broker is None or broker.incarnation != incarnation or broker.fenced:
                del self._handing_over_since[broker_id, incarnation]
                self._to_hand_over.pop(broker_id, None)
                self._nothing_to_hand_over.discard(broker_id)
                continue
            led = self._image.led_by(broker_id)
            left = self._to_hand_over.setdefault(broker_id, [])
            if not left:
                left.extend(led)
                self._found_in_pass.discard(broker_id)
            for _ in range(min(MAX_PARTITIONS_PER_DECISION, len(left))):
                topic_partition = left.pop()
                election = None
                if topic_partition in led and topic_partition not in self._electing:
                    election = self._hand_over(topic_partition, broker_id, now)
                if election is not None:
                    yield election
                if election is not None or topic_partition in self._electing:
                    self._found_in_pass.add(broker_id)
            if not left and broker_id not in self._found_in_pass:
                self._nothing_to_hand_over.add(broker_id)

    def _hand_over(self, topic_partition: TopicPartition, broker_id: BrokerId, now: float) -> Election | None:
        record = self._image.partitions[topic_partition]
        able = [peer for peer in electable(record, self._image.brokers) if peer != broker_id]
        return self._heard_of(record, able, now)

    # --- Elections ---------------------------------------------------------------------------------------------------

    def _elections(self, now: float) -> Iterator[Election]:
        """Continue the pass over the partitions without a leader; begin another one if something changed."""
        if not self._to_look_at:
            if self._image.elections_version == self._looked_at_version and now < self._look_again_at:
                return
            self._looked_at_version = self._image.elections_version
            self._look_again_at = math.inf
            self._to_look_at = list(self._image.leaderless)[::-1]
            self._recoverable_since = {
                tp: t for tp, t in self._recoverable_since.items() if tp in self._image.leaderless
            }
        for _ in range(min(MAX_PARTITIONS_PER_DECISION, len(self._to_look_at))):
            topic_partition = self._to_look_at.pop()
            if topic_partition in self._image.leaderless and topic_partition not in self._electing:
                election = self._election(self._image.partitions[topic_partition], now)
                if election is not None:
                    yield election

    def _election(self, record: PartitionRecord, now: float) -> Election | None:
        able = electable(record, self._image.brokers)
        if able:
            in_sync = [candidate for candidate in able if candidate in record.isr]
            return self._heard_of(record, in_sync or able, now, recovery=False)
        topic_partition = record.topic_partition
        tickets = self._image.tickets_of(topic_partition)
        winners = recovery_winners(record, tickets, self._image.brokers, self._image.feature_level)
        if not winners:
            self._recoverable_since.pop(topic_partition, None)
            return None
        due = self._recoverable_since.setdefault(topic_partition, now) + self._recovery_patience
        if now < due and self._waits_for_somebody(record):
            self._look_again_at = min(self._look_again_at, due)
            return None
        return self._heard_of(record, winners, now, recovery=True)

    def _heard_of(
        self,
        record: PartitionRecord,
        candidates: Sequence[BrokerId],
        now: float,
        *,
        recovery: bool = False,
    ) -> Election | None:
        """Elect the first candidate with a recent heartbeat; if none has one, schedule another look soon or when it is
        fenced.
        """
        for candidate in candidates:
            incarnation = self._image.brokers[candidate].incarnation
            if self._sessions.is_heard(candidate, incarnation, now):
                tp = record.topic_partition
                return Election(tp.topic_id, tp.partition, candidate, incarnation, record.partition_epoch, recovery)
        self._look_again_at = min(self._look_again_at, now + LOOK_AGAIN_SECONDS)
        return None

    def _waits_for_somebody(self, record: PartitionRecord) -> bool:
        """Return whether an absent member may be eligible, or have more, when it is back."""
        tickets = {ticket.broker_id: ticket for ticket in self._image.tickets_of(record.topic_partition)}
        absent = [member for member in members(record) if not is_live(self._image.brokers, member)]
        return any(member not in tickets or tickets[member].has_directory for member in absent)
