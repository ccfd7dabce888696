"""Users and their tokens: create, list, alter, revoke.

Administrators may do all of this. A user may change its own password, and list, create and revoke its own tokens, if
the quorum has its record. An access token of an identity provider does not make its bearer the user of that name.
"""

from __future__ import annotations

from aiohttp import web

from http_api.web.bodies import read_json
from http_api.web.call import Call
from http_api.web.replies import json_reply
from metadata.view import TokenRecord, UserRecord
from raftlog.api import security as documents
from raftlog.errors import InvalidRequest
from raftlog.security.acls import Operation
from raftlog.security.secrets import Secret

CHANGE_TIMEOUT_S = 60.0
"""Seconds beyond the time that the broker waits for the quorum, and for a password to be hashed."""


async def list_users(call: Call) -> web.StreamResponse:
    await call.catch_up("a user")
    return json_reply(documents.Users([_user(call, user) for user in call.view.security.users()]))


async def create_user(call: Call) -> web.StreamResponse:
    asked = await read_json(call, documents.CreateUser)
    creation = call.service.security.create_user(asked.name, _secret(asked.password), superuser=asked.superuser)
    user = await call.context.finish(creation, CHANGE_TIMEOUT_S)
    return json_reply(_user(call, user), status=201)


async def describe_user(call: Call) -> web.StreamResponse:
    name = call.segment("user")
    await call.catch_up("a user")
    user = call.view.security.user(name)
    if user is None:
        raise InvalidRequest("unknown_user", f"there is no user {name[:255]!r}")
    return json_reply(_user(call, user))


async def alter_user(call: Call) -> web.StreamResponse:
    asked = await read_json(call, documents.AlterUser)
    if asked.superuser is not None or asked.remove_password:
        call.check(Operation.ALTER)
    change = call.service.security.alter_user(
        call.segment("user"),
        password=_secret(asked.password),
        remove_password=asked.remove_password,
        superuser=asked.superuser,
    )
    return json_reply(_user(call, await call.context.finish(change, CHANGE_TIMEOUT_S)))


async def remove_user(call: Call) -> web.StreamResponse:
    """Remove the user with its tokens; its open connections end within a second."""
    await call.context.finish(call.service.security.remove_user(call.segment("user")), CHANGE_TIMEOUT_S)
    return web.Response(status=204)


async def list_tokens(call: Call) -> web.StreamResponse:
    await call.catch_up("a token")
    tokens = call.view.security.tokens_of(call.segment("user"))
    return json_reply(documents.Tokens([_token(token) for token in tokens]))


async def create_token(call: Call) -> web.StreamResponse:
    """Create a token. This answer is the only place where its text ever appears."""
    asked = await read_json(call, documents.CreateToken)
    creation = call.service.security.create_token(call.segment("user"), asked.description, asked.expires_in_ms)
    record, text = await call.context.finish(creation, CHANGE_TIMEOUT_S)
    info = _token(record)
    created = documents.CreatedToken(info.id, info.user, info.description, info.expires_ms, token=text.reveal())
    return json_reply(created, status=201)


async def revoke_token(call: Call) -> web.StreamResponse:
    token_id, user = call.segment("token"), call.segment("user")
    await call.catch_up("a token")
    token = call.view.security.token(token_id)
    if token is None or token.principal_name != user:
        raise InvalidRequest("unknown_token", f"user {user[:255]!r} has no token {token_id[:64]!r}")
    await call.context.finish(call.service.security.revoke_token(token_id), CHANGE_TIMEOUT_S)
    return web.Response(status=204)


def _secret(text: str | None) -> Secret | None:
    return None if text is None else Secret(text)


def _user(call: Call, user: UserRecord) -> documents.UserInfo:
    tokens = call.view.security.token_count_of(user.name)
    return documents.UserInfo(user.name, user.superuser, bool(user.argon2), tokens, user.version)


def _token(token: TokenRecord) -> documents.TokenInfo:
    return documents.TokenInfo(token.token_id, token.principal_name, token.description, token.expires_ms)
