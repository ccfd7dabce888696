"""The first administrator of a cluster: from a file in a node's data folder into the quorum, once.

`raftlog server init --secure` writes the file. It holds a name and the digest of a token, no secret: the token itself
is shown to the operator and stored nowhere. A node that finds the file proposes the administrator until the quorum has
decided, then removes the file. The quorum refuses every first administrator but one, and that one too once any user
was ever made, so an old file, or a second one on another node, opens nothing (S12).
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec

from metadata.commands.security import (
    SECURITY_FEATURE_LEVEL,
    BootstrapSecurity,
    PutToken,
    PutUser,
    TokenIdField,
    UserNameField,
)
from metadata.records.security import NEVER_EXPIRES
from metadata.view import ClusterView
from raftlog.broker.changes.feature_levels import check_level
from raftlog.broker.changes.proposer import Proposer
from raftlog.broker.security.authentication.tokens import NewToken, is_that_of
from raftlog.errors import InvalidRequest, RetriableError
from raftlog.ports import Disk, Logger
from raftlog.security.principals import check_user_name

FIRST_ADMINISTRATOR_FILE = "first-administrator.json"
FORMAT_VERSION = 1
MAX_FILE_BYTES = 4096
RETRY_SECONDS = 1.0
"""Time between two proposals, in seconds."""
DESCRIPTION = "first administrator"
"""The description of the token."""


class AdministratorFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `first-administrator.json`."""

    format_version: int
    user: UserNameField
    token_id: TokenIdField
    token_sha256: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    """The digest of the token's whole text."""

    @staticmethod
    def of(user: str, token: NewToken) -> AdministratorFile:
        """Return the file for a new token. Raises `InvalidRequest` for a name that no user may have."""
        return AdministratorFile(FORMAT_VERSION, check_user_name(user), token.token_id, token.digest.hex())

    def encoded(self) -> bytes:
        """Return the text of the file."""
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"

    @property
    def command(self) -> BootstrapSecurity:
        """Return the command that makes this administrator."""
        digest = bytes.fromhex(self.token_sha256)
        return BootstrapSecurity(
            user=PutUser(name=self.user, superuser=True, scram=None, argon2="", replaces=0),
            token=PutToken(
                token_id=self.token_id,
                digest=digest,
                principal_name=self.user,
                description=DESCRIPTION,
                expires_ms=NEVER_EXPIRES,
            ),
        )


def read_first_administrator(disk: Disk, folder: str) -> AdministratorFile | None:
    """Return the content of the file in a data folder; None if there is none.

    Raises `InvalidRequest` for a damaged file, and `DiskError` for one that cannot be read.
    """
    where = f"{folder}/{FIRST_ADMINISTRATOR_FILE}"
    remedy = "remove it, and prepare the node again with `raftlog server init --secure` if the cluster is new"
    try:
        content = disk.read(FIRST_ADMINISTRATOR_FILE)
    except FileNotFoundError:
        return None
    if len(content) > MAX_FILE_BYTES:
        raise InvalidRequest("invalid_config", f"{where} has more than {MAX_FILE_BYTES} bytes: {remedy}")
    try:
        found = msgspec.json.decode(content, type=AdministratorFile)
        check_user_name(found.user)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidRequest("invalid_config", f"{where} is damaged ({error}): {remedy}") from None
    except InvalidRequest as error:
        raise InvalidRequest("invalid_config", f"{where}: {error.detail}: {remedy}") from None
    if found.format_version != FORMAT_VERSION:
        raise InvalidRequest(
            "unsupported_version",
            f"{where} has format {found.format_version}, but this version of raftlog supports {FORMAT_VERSION}",
        )
    return found


class FirstAdministrator:
    """The proposing of the first administrator by one node. All calls are made on the broker's loop."""

    def __init__(
        self, found: AdministratorFile, disk: Disk, view: ClusterView, proposer: Proposer, logger: Logger
    ) -> None:
        """`found` is what `read_first_administrator` returned of the same disk."""
        self._found = found
        self._disk = disk
        self._view = view
        self._proposer = proposer
        self._log = logger
        self._problem = f"the first administrator, user {found.user!r}, is not known to the cluster yet"
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to propose, in a task of its own."""
        self._task = asyncio.get_running_loop().create_task(self.run())
        self._task.add_done_callback(_report)

    def stop(self) -> None:
        """Propose no longer; the next start begins again."""
        if self._task is not None:
            self._task.cancel()

    def problems(self) -> list[str]:
        """Return the problems for the node's health."""
        return [self._problem] if self._problem else []

    async def run(self) -> None:
        """Propose until the quorum has decided, then remove the file."""
        told = ""
        while True:
            try:
                await self._propose()
            except (InvalidRequest, RetriableError) as error:
                detail = error.detail
                if detail != told:
                    told = detail
                    self._log.warning("first_administrator_waits", user=self._found.user, reason=detail)
                self._problem = f"the first administrator, user {self._found.user!r}, is not made: {detail}"
            else:
                return
            await asyncio.sleep(RETRY_SECONDS)

    async def _propose(self) -> None:
        """Raises `InvalidRequest` or `RetriableError` if nothing was decided, or the file stays."""
        # An older node could not decode the command, and would stop.
        check_level(self._view.feature_level, SECURITY_FEATURE_LEVEL, "there are users")
        refusal = ""
        try:
            await self._proposer.decide(self._found.command)
        except InvalidRequest as error:
            if error.code != "already_bootstrapped":
                raise
            # Perhaps by this very command, whose answer was lost.
            refusal = "" if self._is_made() else error.detail
        await asyncio.to_thread(self._remove)
        if refusal:
            self._problem = (
                f"the first administrator, user {self._found.user!r}, was refused, and its token is void: {refusal}"
            )
            self._log.warning("first_administrator_refused", user=self._found.user, reason=refusal)
            return
        self._problem = ""
        self._log.info("first_administrator_made", user=self._found.user, token_id=self._found.token_id)

    def _is_made(self) -> bool:
        token = self._view.security.token(self._found.token_id)
        return token is not None and is_that_of(token.digest, bytes.fromhex(self._found.token_sha256))

    def _remove(self) -> None:
        self._disk.remove(FIRST_ADMINISTRATOR_FILE)
        self._disk.fsync_directory("")


def _report(task: asyncio.Task[None]) -> None:
    """Report an unexpected end, after which nothing is proposed before a restart."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        message = "the first administrator is no longer proposed"
        task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})
