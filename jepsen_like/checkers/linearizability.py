"""Linearizability: the search for an order of all calls that explains every answer and respects real time.

The search is Wing and Gong's (1993) with Lowe's cache of (placed calls, state): depth first over the calls that may be
next, which are those invoked before the first outstanding return. Several techniques make it fast enough:

* A call without a return may take effect at any time, or never. So the search ends when all others are placed; a read
  without a return is left out; a call that would not change the state is not tried; and of several identical ones only
  the first that is left.
* Calls that return sooner are tried sooner. A read that matches the current state is placed at once, and no alternative
  is tried: wherever an order has it later, it may as well come now.
* If a state shows that the next answer cannot be reached from it (`Model.leads_to`), the branch is abandoned.
* The parts of the object are searched in turn, a slice each, until one has no explanation: beside a part that is
  hopelessly long there often is another that is refuted quickly.
* States are numbered, and a step from a state is computed once. The set of placed calls is one integer with a bit per
  call.

The search has a budget of steps and memory. If it is exhausted, the outcome is unknown: `valid` is None.

Sources: Herlihy and Wing 1990; Wing and Gong 1993; Lowe 2017; Horn and Kroening 2015.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from jepsen_like.histories.history import Call, Operation, calls

from .models import Impossible, Model, State, Step
from .verdict import Verdict

STEPS_MAX = 20_000_000
"""Steps of all parts together: about a minute."""
REMEMBERED_MAX = 1_000_000
"""Cached positions of all parts together: about a hundred megabytes."""
SLICE_STEPS = 50_000
PLACED_SHOWN = 3
"""Number of calls shown before the one that cannot be placed: they made the state that it contradicts."""


def check(history: Sequence[Operation], model: Model, *, steps: int = STEPS_MAX) -> Verdict:
    """Judge a history. Raises `InvalidRequest` if the model does not have its operations."""
    parts: dict[Hashable, list[tuple[Call, Step]]] = {}
    for call in calls(history):
        if call.kind != "fail":  # the call did not happen
            part, step = model.read_call(call)
            if call.kind == "ok" or not step.changes_nothing:
                parts.setdefault(part, []).append((call, step))
    searches = {part: Search(found, model) for part, found in parts.items()}
    refuted = _search(searches, steps)
    if refuted is None:
        return Verdict(None if searches else True, {}, {"reason": "the search exhausted its budget"})
    if not refuted:
        return Verdict(True)
    return Verdict(False, {"nonlinearizable": [_explained(part, searches[part], history) for part in refuted]})


def _search(searches: dict[Hashable, Search], steps: int) -> list[Hashable] | None:
    """Return the parts without an explanation (one is enough), or None if the budget was exhausted before."""
    left = dict(searches)
    while left:
        for part, search in list(left.items()):
            budget = min(SLICE_STEPS, steps)
            outcome = search.run(budget)
            if outcome is False:
                return [part]
            if outcome:
                del left[part]
                search.forget()
            steps -= budget
        remembered = sum(search.remembered for search in left.values())
        if left and (steps <= 0 or remembered > REMEMBERED_MAX):
            return None
    return []


def _explained(part: Hashable, search: Search, history: Sequence[Operation]) -> dict[str, Any]:
    """Describe the first completion that cannot be placed, and the longest order before it."""
    position = search.stuck_at
    culprit = history[position]
    placed = [history[at].index for at in search.best_order]
    told: dict[str, Any] = {
        "op": {"index": culprit.index, "process": culprit.process, "f": culprit.f, "value": culprit.value},
        "position": position,
        "placed": placed,
        "proof": [*placed[-PLACED_SHOWN:], culprit.index],
    }
    return told if part is None else {"key": part, **told}


@dataclass(slots=True)
class _Entry:
    """A call, or its return (`call` is None), in a linked list that is walked from its head. `bit` is 0 for a
    return.
    """

    number: int
    position: int
    bit: int = 0
    before: _Entry | None = None
    after: _Entry | None = None
    matching: _Entry | None = None
    """The call's return, or None if it never came."""
    twin_bits: int = 0
    """For a call without a return: the identical ones that were invoked before."""


@dataclass(slots=True)
class _Choice:
    """The state of the search after one more call was placed, and the alternatives to that call."""

    entry: _Entry | None
    state: int
    others: list[_Entry]
    looked: int = 0
    """At least this many of `_looks`, in the order of their returns, are placed."""


class Search:
    """The search of one part of the object.

    Invariant: `_placed` has the bits of the entries that `_path` took out of the list.
    """

    def __init__(self, found: Sequence[tuple[Call, Step]], model: Model) -> None:
        self._model = model
        self._steps = [step for _, step in found]
        self._is_look = [step.changes_nothing for step in self._steps]
        self._looks = sorted((call.returned, n) for n, (call, step) in enumerate(found) if step.changes_nothing)
        self._head = _Entry(-1, -1)
        self._states: list[State] = []
        self._state_numbers: dict[State, int] = {}
        self._step_numbers: dict[Step, int] = {}
        self._kinds = [self._step_numbers.setdefault(step, len(self._step_numbers)) for step in self._steps]
        self._made: dict[tuple[int, int], int] = {}
        self._seen: set[int] = set()
        self._placed = 0
        self._unreturned = sum(call.kind == "ok" for call, _ in found)
        self._link(found)
        self.stuck_at = -1
        """Position of the return that no order has passed."""
        self.best_order: list[int] = []
        self._path = [_Choice(None, self._numbered(model.initial), [])]
        self._path[0].others = self._candidates(self._path[0].state)

    @property
    def remembered(self) -> int:
        return len(self._seen)

    def forget(self) -> None:
        """Free the cache of a search that has ended."""
        self._seen.clear()

    def run(self, budget: int) -> bool | None:
        """Continue for `budget` steps. True: an order exists. False: none exists. None: not known yet."""
        while self._unreturned:
            if budget <= 0:
                return None
            budget -= 1
            here = self._path[-1]
            if not here.others:
                if here.entry is None:
                    return False
                self._path.pop()
                self._put_back(here.entry)
                continue
            entry = here.others.pop()
            after = self._stepped(here.state, entry)
            if after < 0 or (entry.matching is None and (after == here.state or entry.twin_bits & ~self._placed)):
                continue
            position = (self._placed | entry.bit) << 32 | after
            if position not in self._seen:
                self._seen.add(position)
                self._place(entry)
                looked = self._looked(here.looked)
                self._path.append(_Choice(entry, after, [], looked))
                others = self._candidates(after)
                self._path[-1].others = others if self._leads_on(after, looked) else []
        return True

    def _looked(self, looked: int) -> int:
        while looked < len(self._looks) and self._placed >> self._looks[looked][1] & 1:
            looked += 1
        return looked

    def _leads_on(self, state: int, looked: int) -> bool:
        """Return whether the answer of the next read to return can still be reached."""
        leads_to, restarts = self._model.leads_to, self._model.restarts
        if leads_to is None or restarts is None or looked == len(self._looks):
            return True
        returned, number = self._looks[looked]
        look = self._steps[number]
        if leads_to(self._states[state], look):
            return True
        entry = self._head.after
        while entry is not None and entry.position < returned:
            if entry.bit and restarts(self._steps[entry.number], look):
                return True
            entry = entry.after
        return False

    # --- The list -----------------------------------------------------------------------------------------------------

    def _link(self, found: Sequence[tuple[Call, Step]]) -> None:
        entries: list[_Entry] = []
        twins: dict[int, int] = {}
        for number, (call, _) in enumerate(found):
            entry = _Entry(number, call.called, 1 << number)
            entries.append(entry)
            if call.kind == "ok":
                entry.matching = _Entry(number, call.returned)
                entries.append(entry.matching)
            else:
                kind = self._kinds[number]
                entry.twin_bits = twins.get(kind, 0)
                twins[kind] = entry.twin_bits | entry.bit
        before = self._head
        for entry in sorted(entries, key=lambda one: one.position):
            before.after, entry.before = entry, before
            before = entry

    def _candidates(self, state: int) -> list[_Entry]:
        """Return the calls that may be next, the best at the end, and record how far this order came."""
        found: list[_Entry] = []
        entry = self._head.after
        while entry is not None and entry.bit:
            found.append(entry)
            entry = entry.after
        if entry is not None and entry.position > self.stuck_at:
            self.stuck_at = entry.position
            self.best_order = [choice.entry.position for choice in self._path if choice.entry is not None]
        for entry in found:
            if entry.matching is not None and self._is_look[entry.number] and self._stepped(state, entry) == state:
                return [entry]
        found.sort(key=_return_position, reverse=True)
        return found

    def _place(self, entry: _Entry) -> None:
        self._placed |= entry.bit
        _take_out(entry)
        if entry.matching is not None:
            _take_out(entry.matching)
            self._unreturned -= 1

    def _put_back(self, entry: _Entry) -> None:
        self._placed &= ~entry.bit
        if entry.matching is not None:
            _put_in(entry.matching)
            self._unreturned += 1
        _put_in(entry)

    # --- States -------------------------------------------------------------------------------------------------------

    def _numbered(self, state: State) -> int:
        number = self._state_numbers.get(state)
        if number is None:
            number = self._state_numbers[state] = len(self._states)
            self._states.append(state)
        return number

    def _stepped(self, state: int, entry: _Entry) -> int:
        """Return the number of the state after the call, or -1 if its answer is impossible."""
        key = (state, self._kinds[entry.number])
        known = self._made.get(key)
        if known is None:
            after = self._model.step(self._states[state], self._steps[entry.number])
            known = self._made[key] = -1 if isinstance(after, Impossible) else self._numbered(after)
        return known


_NEVER = 1 << 62


def _return_position(entry: _Entry) -> int:
    return _NEVER if entry.matching is None else entry.matching.position


def _take_out(entry: _Entry) -> None:
    assert entry.before is not None
    entry.before.after = entry.after
    if entry.after is not None:
        entry.after.before = entry.before


def _put_in(entry: _Entry) -> None:
    assert entry.before is not None
    entry.before.after = entry
    if entry.after is not None:
        entry.after.before = entry
