"""The requests of group members and transactional producers of one caller: carried out if it may make them (S12)."""

from __future__ import annotations

import msgspec

from metadata.view import ClusterView
from raftlog.broker.security.access.access import Access
from raftlog.broker.security.access.needs import ids_of, needs_of
from raftlog.errors import RaftlogError
from raftlog.ports import Answer
from raftlog.security.acls import Operation, Resource, ResourceType
from raftlog.security.principals import Caller
from raftlog.wire import (
    GroupHeartbeatsRequest,
    GroupHeartbeatsResponse,
    GroupOffsetsRequest,
    GroupOffsetsResponse,
    GroupRequest,
    GroupResponse,
    TransactionRequest,
    TransactionResponse,
)

from .request_stream import AskTransactionsAs, GroupRequestsAs


class GuardedMembers:
    """`GroupRequests` and `AskTransactions` of one caller. Every request is decided when it arrives."""

    def __init__(
        self, groups: GroupRequestsAs, ask: AskTransactionsAs, view: ClusterView, access: Access, caller: Caller
    ) -> None:
        self._groups = groups
        self._ask = ask
        self._view = view
        self._access = access
        self._caller = caller

    def ask(self, request: GroupRequest, client_host: str, answer: Answer[GroupResponse]) -> None:
        refusal = self._refusal(request)
        if refusal is not None:
            answer(refusal)
        elif isinstance(request, GroupOffsetsRequest):
            self._groups.ask(request, client_host, lambda found: answer(self._shown(found)))
        else:
            self._groups.ask(request, client_host, answer, self._caller.principal.name)

    def ask_transactions(self, request: TransactionRequest, answer: Answer[TransactionResponse]) -> None:
        refusal = self._refusal(request)
        if refusal is None:
            self._ask(request, answer, self._caller.principal.name)
        else:
            answer(refusal)

    def hear(self, request: GroupHeartbeatsRequest) -> GroupHeartbeatsResponse:
        """Return the results of heartbeats; those for groups that the caller may not read are not heard."""
        number = request.correlation_id
        refused = {
            at: refusal.code
            for at, member in enumerate(request.members)
            if (refusal := self._refusal(GroupHeartbeatsRequest(number, [member]))) is not None
        }
        allowed = [member for at, member in enumerate(request.members) if at not in refused]
        heard = iter(self._groups.hear(msgspec.structs.replace(request, members=allowed)).errors)
        return GroupHeartbeatsResponse(
            number, [refused[at] if at in refused else next(heard) for at in range(len(request.members))]
        )

    def _shown(self, found: GroupResponse | RaftlogError) -> GroupResponse | RaftlogError:
        """Return the offsets in topics that the caller may describe; it learns of no others."""
        if not isinstance(found, GroupOffsetsResponse):
            return found
        topics = {one.topic for one in found.offsets}
        shown = {
            name
            for name in topics
            if self._access.allows(self._caller, Operation.DESCRIBE, Resource(ResourceType.TOPIC, name))
        }
        if shown == topics:
            return found
        return msgspec.structs.replace(found, offsets=[one for one in found.offsets if one.topic in shown])

    def _refusal(self, request: GroupRequest | TransactionRequest | GroupHeartbeatsRequest) -> RaftlogError | None:
        action = str(request.__struct_config__.tag).partition(".")[0]
        try:
            self._access.check_all(self._caller, needs_of(request, self._view), action)
            self._access.check_ids(self._caller, ids_of(request), action)
        except RaftlogError as error:
            return error
        return None
