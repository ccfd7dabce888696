"""Links that deliver only on command, and the text of their messages, one line each."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from partitions.replication import protocol as rp
from raftlog.ports import FileRegion, LinkHandler, Part
from raftlog.records.batch import parse_header, split_batches
from tests.support.partitions.manual import ManualScheduler


class StoryLink:
    """One end of a connection. Sent messages wait in `queue` until they are delivered to the other end."""

    def __init__(self, scheduler: ManualScheduler, owner: int, peer: int, handler: LinkHandler) -> None:
        self._scheduler = scheduler
        self.owner = owner
        self.peer = peer
        self.handler = handler
        self.queue: deque[bytes] = deque()
        self.other: StoryLink
        self.open = True

    def send(self, parts: Sequence[Part]) -> None:
        message = b"".join(bytes_of(part) for part in parts)
        if self.open:
            self.queue.append(message)

    def close(self) -> None:
        for end in (self, self.other):
            if end.open:
                end.open = False
                end.queue.clear()
                self._scheduler.call_soon(lambda end=end: end.handler.on_closed(end))

    def deliver(self) -> bytes | None:
        """Deliver the oldest message to the other end; None if there is none."""
        if not self.queue:
            return None
        message = self.queue.popleft()
        self.other.handler.on_message(self.other, memoryview(message))
        return message


def connect(scheduler: ManualScheduler, owner: int, peer: int, dialed: LinkHandler, accepted: LinkHandler) -> StoryLink:
    """Open a connection that `owner` dialed."""
    here, there = StoryLink(scheduler, owner, peer, dialed), StoryLink(scheduler, peer, owner, accepted)
    here.other, there.other = there, here
    accepted.on_opened(there)
    dialed.on_opened(here)
    return here


def bytes_of(part: Part) -> bytes:
    if not isinstance(part, FileRegion):
        return bytes(part)
    try:
        return part.file.pread(part.length, part.position)
    finally:
        part.release()


def describe(message: bytes, *, from_follower: bool) -> list[str]:
    """Return a frame as text."""
    if from_follower:
        frame, body = rp.decode_from_follower(message), memoryview(b"")
    else:
        frame, body = rp.decode_from_leader(message)  # type: ignore[assignment]
    match frame:
        case rp.Hello():
            return [f"hello {frame.broker_id}@{frame.incarnation}"]
        case rp.Welcome():
            return [f"welcome from {frame.broker_id}@{frame.incarnation}"]
        case rp.SubscribeFrame():
            return [
                f"subscribe #{s.slot} epoch={s.leader_epoch} last_epoch={s.last_epoch} fetch={s.fetch_offset} "
                f"stable={s.stable_end_offset}"
                for s in frame.subscriptions
            ]
        case rp.UnsubscribeFrame():
            return ["unsubscribe " + " ".join(f"#{slot}" for slot in frame.slots)]
        case rp.AckFrame():
            entries = "".join(f" #{e.slot} fetch={e.fetch_offset} stable={e.stable_end_offset}" for e in frame.entries)
            return [f"ack push={frame.sequence}{entries}"]
        case rp.AnswersFrame():
            return [_describe_answer(answer) for answer in frame.answers]
        case rp.PushFrame():
            lines, start = [], 0
            for entry in frame.entries:
                headers = [parse_header(batch) for batch in split_batches(body[start : start + entry.length])]
                start += entry.length
                batches = "".join(f" [{h.base_offset},{h.end_offset})@{h.leader_epoch}" for h in headers)
                lines.append(
                    f"push {frame.sequence} #{entry.slot}{batches} hw={entry.high_watermark} "
                    f"start={entry.log_start_offset}"
                )
            return lines
    raise AssertionError(frame)


def _describe_answer(answer: rp.SlotAnswer) -> str:
    match answer:
        case rp.MatchedSlot():
            return f"matched #{answer.slot} hw={answer.high_watermark} start={answer.log_start_offset}"
        case rp.DivergedSlot():
            return f"diverged #{answer.slot} epoch={answer.epoch} end={answer.end_offset}"
        case rp.StartAtSlot():
            return f"start at #{answer.slot} offset={answer.first_batch_offset}"
        case rp.RefusedSlot():
            return f"refused #{answer.slot} {answer.code}"
