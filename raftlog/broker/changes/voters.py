"""Changes of the quorum's voters for the API: the quorum's answer becomes a result or an error."""

from __future__ import annotations

from metadata.quorum.port import MetadataQuorum
from metadata.quorum.protocol import VotersChanged
from metadata.voters.changes import Action, VoterChange
from raftlog.broker.futures import answer_of
from raftlog.errors import RetriableError, error_from_code
from raftlog.model import BrokerId, VotersChange

TIMEOUT_SECONDS = 10.0


async def change_voters(quorum: MetadataQuorum, action: str, node_id: int, *, plan: bool) -> VotersChange:
    """See `http_api.service.service.BrokerService.change_voters`."""
    change = VoterChange(Action(action), node_id)
    answer: VotersChanged = await answer_of(
        lambda tell: quorum.change_voters(change, tell, plan=plan, timeout=TIMEOUT_SECONDS)
    )
    if answer.verdict not in ("applied", "planned"):
        # Retries leave no other verdicts here; a newer node may send one that is unknown to this version.
        if not answer.code:
            raise RetriableError("outcome_unknown", answer.detail or f"the quorum answered {answer.verdict!r}")
        raise error_from_code(answer.code, answer.detail)
    before, after = (tuple(BrokerId(voter) for voter in voters) for voters in (answer.before, answer.after))
    return VotersChange(before, after, answer.verdict == "applied", answer.index)
