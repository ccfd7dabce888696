"""Bugs of users, tokens and rules: in the quorum's decisions, in a snapshot, and in a retry."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from msgspec.structs import replace

from metadata.commands.envelope import encode
from metadata.image import apply
from metadata.image import security as image
from metadata.image.security_state import SecurityState
from metadata.quorum import node as quorum_node
from metadata.records.events import UserRemoved
from metadata.snapshot import encoder

from .patches import SECURITY, Patch, Planted, original

_put_user = original(image, "_put_user")
_bootstrap = original(apply, "bootstrap_security")
_unpack = original(encoder, "unpack_security")


def _undo_nothing(state: SecurityState) -> Generator[None, None, None]:
    """Leave the changes before the refused one in force."""
    yield from state.keep_in_steps()


def _put_over_any_version(state: Any, change: Any, index: int) -> Any:
    """Let the last administrator win."""
    before = state.security.user(change.name)
    return _put_user(state, replace(change, replaces=0 if before is None else before.version), index)


def _remove_only_the_user(state: Any, change: Any) -> Any:
    """Leave the tokens of a removed user."""
    state.security.change(UserRemoved(change.name))
    return None


def _bootstrap_while_empty(state: Any, command: Any, index: int) -> Any:
    """Take a cluster without users for one that never had any."""
    state.security.bootstrapped = state.security.bootstrapped and bool(state.security.user_count)
    return _bootstrap(state, command, index)


def _unpack_as_new(security: Any, packed: Any) -> Generator[None, None, None]:
    """Forget in a snapshot that the cluster was bootstrapped."""
    yield from _unpack(security, packed)
    security.bootstrapped = False


def _encode_without_session(command: Any, *, session: Any = None, term: int | None = None) -> bytes:
    """Send a retry as a new command."""
    return encode(command, term=term)


SECURITY_BUGS = (
    Planted(
        "a_refused_change_is_half_done",
        "a refused command leaves the changes before the refused one",
        "SecurityState.undo_in_steps",
        (Patch(SecurityState, "undo_in_steps", _undo_nothing),),
        SECURITY,
    ),
    Planted(
        "administrators_overwrite_each_other",
        "a user is replaced whatever its version is",
        "_put_user compares versions",
        (Patch(image, "_put_user", _put_over_any_version),),
        SECURITY,
    ),
    Planted(
        "tokens_outlive_their_user",
        "a removed user's tokens stay",
        "_remove_user removes them",
        (Patch(image, "_remove_user", _remove_only_the_user),),
        SECURITY,
    ),
    Planted(
        "a_cluster_without_users_is_new",
        "the first administrator may be made again after all users were removed",
        "the bootstrapped flag never falls",
        (Patch(apply, "bootstrap_security", _bootstrap_while_empty),),
        SECURITY,
    ),
    Planted(
        "a_snapshot_takes_a_cluster_for_new",
        "a node that installs a snapshot forgets that the cluster was bootstrapped",
        "pack_security writes the flag",
        (Patch(encoder, "unpack_security", _unpack_as_new),),
        SECURITY,
    ),
    Planted(
        "a_late_retry_makes_a_revoked_token_again",
        "a retry of a new token is carried out after the token was revoked",
        "QuorumNode.propose names a session",
        (Patch(quorum_node, "encode", _encode_without_session),),
        SECURITY,
    ),
)
