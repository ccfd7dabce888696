"""An authenticator with users and tokens of a quorum, whose passwords cost a counted unit of work instead of time."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from metadata.records.events import TokenChanged, TokenRemoved, UserChanged, UserRemoved
from metadata.records.security import NEVER_EXPIRES, TokenRecord, UserRecord
from metadata.records.security_table import SecurityTable
from raftlog.broker.security.authentication.authentication import Authentication
from raftlog.broker.security.authentication.authenticator import Authenticator
from raftlog.broker.security.authentication.client_names import ClientNames
from raftlog.broker.security.authentication.sessions import Sessions
from raftlog.broker.security.authentication.tokens import NewToken, new_token
from raftlog.broker.security.identity_provider.access_claims import AccessClaims
from raftlog.broker.security.passwords.checks import Hasher, PasswordChecks
from raftlog.broker.security.unauthenticated import Cause, Unauthenticated
from raftlog.config import DEFAULT_USER_NAME, SecurityConfig
from raftlog.errors import InvalidRequest, RaftlogError, RetriableError
from raftlog.ports import Answer
from raftlog.security.presented import Presented
from raftlog.security.secrets import Secret
from tests.support.partitions.manual import ManualScheduler, ManualWorker

HOST = "10.1.2.3"


class CountedHasher:
    """A hash without cost that counts its calls, and the lengths that they hashed."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.error: Exception | None = None

    def prepared(self, password: Secret) -> bytes:
        if "\0" in password.reveal():
            raise InvalidRequest("invalid_request", "a character that no password has")
        return password.reveal().encode()

    def matches(self, phc: str, secret: bytes) -> bool:
        self.calls.append((phc[:5], len(phc)))
        if self.error is not None:
            raise self.error
        return phc == hashed(secret.decode())

    def unmatched_phc(self) -> str:
        return "hash:" + "0" * 64


def hashed(password: str) -> str:
    return f"hash:{hashlib.sha256(password.encode()).hexdigest()}"


class NamedAccessTokens:
    """Access tokens whose text is their user's name; `valid` has those that are valid."""

    def __init__(self) -> None:
        self.valid: dict[str, AccessClaims] = {}
        self.away = False

    def check(self, text: Secret, answer: Answer[AccessClaims]) -> None:
        if self.away:
            answer(RetriableError("identity_provider_unavailable", "away"))
        elif text.reveal() in self.valid:
            answer(self.valid[text.reveal()])
        else:
            answer(Unauthenticated(Cause.INVALID_ACCESS_TOKEN, "unknown"))


class AuthenticatedWorld:
    """One node's authentication on manual time."""

    def __init__(
        self,
        *,
        mode: Any = "required",
        oidc: bool = True,
        hasher: Hasher | None = None,
        checks: type[PasswordChecks] = PasswordChecks,
        **settings: Any,
    ) -> None:
        """`hasher` replaces the counted one, and `checks` the class of the pool, by one with a planted bug."""
        self.table = SecurityTable()
        self.scheduler = ManualScheduler()
        self.clock = self.scheduler.clock
        self.worker = ManualWorker(self.scheduler)
        self.hasher = CountedHasher()
        self.access_tokens = NamedAccessTokens()
        self.refusals: list[tuple[str, str, str, str]] = []
        self.index = 0
        self.checks = checks(
            hasher or self.hasher, self.clock, self.scheduler, self.worker, lambda length: b"k" * length
        )
        self.authenticator = Authenticator(
            SecurityConfig(mode=mode, **settings),
            self.table,
            self.clock.wall_ms,
            ClientNames(DEFAULT_USER_NAME, "c1", lambda found: "node" in str(found["subjectAltName"])),
            self.checks,
            self.access_tokens if oidc else None,
            lambda *refusal: self.refusals.append(refusal),
        )
        self.sessions = Sessions(self.table, self.clock.wall_ms, self.scheduler)

    # --- The quorum's changes ---

    def apply(self, *events: Any) -> None:
        """Apply events to the view, and tell the sessions."""
        for event in events:
            self.table.on_event(event)
        self.index += 1
        self.sessions.on_events(self.index, events)

    def put_user(self, name: str, password: str | None = None, *, superuser: bool = False, phc: str = "") -> UserRecord:
        """Create or change a user. `phc` is a real hash, for a world with a real hasher."""
        if password is not None:
            phc = hashed(password)
        user = UserRecord(name, superuser, None, phc, self.index + 1, self.index + 1)
        self.apply(UserChanged(user))
        return user

    def remove_user(self, name: str) -> None:
        tokens = [TokenRemoved(token.token_id) for token in self.table.tokens_of(name)]
        self.apply(*tokens, UserRemoved(name))

    def put_token(self, name: str, expires_ms: int = NEVER_EXPIRES) -> NewToken:
        made = new_token()
        self.apply(TokenChanged(TokenRecord(made.token_id, made.digest, name, "", expires_ms, self.index)))
        return made

    def remove_token(self, token: NewToken) -> None:
        self.apply(TokenRemoved(token.token_id))

    # --- Requests ---

    def ask(self, presented: Presented) -> list[Authentication | RaftlogError]:
        """Ask; the answer is in the list when there is one."""
        answers: list[Authentication | RaftlogError] = []
        self.authenticator.authenticate(presented, answers.append)
        return answers

    def answer(self, presented: Presented) -> Authentication | RaftlogError:
        """Ask, let everything finish, and return the only answer."""
        answers = self.ask(presented)
        self.worker.run_all()
        (answer,) = answers
        return answer

    def accepted(self, presented: Presented) -> Authentication:
        answer = self.answer(presented)
        assert isinstance(answer, Authentication), answer
        return answer

    def refused(self, presented: Presented) -> str:
        """Ask for something that is refused as unauthenticated; return the reason that was reported."""
        before = len(self.refusals)
        answer = self.answer(presented)
        assert isinstance(answer, Unauthenticated), answer
        assert len(self.refusals) == before + 1 and self.refusals[-1][0] == presented.host
        return self.refusals[-1][3]


def basic(name: str, password: str, **more: Any) -> Presented:
    text = base64.b64encode(f"{name}:{password}".encode()).decode()
    return header(f"Basic {text}", **more)


def bearer(token: NewToken | str, **more: Any) -> Presented:
    return header(f"Bearer {token if isinstance(token, str) else token.text.reveal()}", **more)


def header(text: str | None, *, host: str = HOST, certificate: str | None = None) -> Presented:
    """The credentials of a request: the header's text, and the user that its certificate names."""
    shown = None if certificate is None else {"subjectAltName": (("URI", f"raftlog:/user/{certificate}"),)}
    return Presented(host, None if text is None else Secret(text), shown)
