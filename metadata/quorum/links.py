"""The links between quorum nodes: the handshake, and one direction each.

There is one connection per *ordered* pair of nodes: a node sends on the links that it dialed and receives on those
that it accepted, so that a fault on the link from A to B affects exactly that direction. (Only the answer to a hello
goes the other way.) Both ends begin with a hello; a node that does not belong to the cluster is dropped before a byte
from it reaches the engine. A newer link from the same node replaces the older one, on either side.

Every other node of the cluster belongs, voter or not; the engine decides what it may do. The disk of a node is named
by the hello of the link on which its messages arrive, and by no other. A hello also says where its node can be
dialed, because an observer is in no list of voters, and which nodes vote or lead, with their addresses, because a
node that was down may know only former voters, none of which leads. The accepting node repeats its hello when that
changes. The address in a hello is believed only if a certificate proves the node; of any other, only the port is used,
at the host from which it dialed (`metadata/quorum/peers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec.structs import replace

from metadata.voters.configuration import Configuration
from metadata.voters.identity import QuorumIdentity
from raftlog.errors import InvariantViolation, RemoteProtocolError
from raftlog.model import NO_BROKER, BrokerId, DirectoryId, Endpoint
from raftlog.ports import Buffer, Link, LinkHandler

from .protocol import PEERS_MAX, PROTOCOL_VERSION, Hello, KnownVoter, decode, encode


class LinkOwner(Protocol):
    """The part of a `QuorumNode` that links need."""

    def on_hello(self, peer: BrokerId, directory_id: DirectoryId, endpoint: Endpoint | None) -> None: ...
    def on_connected(self, peer: BrokerId) -> None: ...
    def on_disconnected(self, peer: BrokerId) -> None: ...
    def on_message(self, peer: BrokerId, message: Buffer) -> None: ...
    def on_gone(self, peer: BrokerId) -> None: ...


class Heard(Protocol):
    """Called for a peer that dialed this node, with the address at which it can be dialed in turn."""

    def __call__(self, peer: BrokerId, endpoint: Endpoint | None, *, proven: bool) -> None:
        """`proven`: a certificate proves that it is this node."""
        ...


class QuorumLinks:
    """All links of one node, which feed one `QuorumNode`. Its `send` is the node's `send`."""

    def __init__(
        self,
        identity: QuorumIdentity,
        *,
        on_dropped: Callable[[BrokerId, RemoteProtocolError], None] = lambda peer, error: None,
        on_heard: Heard = lambda peer, endpoint, *, proven: None,
        on_gone: Callable[[BrokerId], None] = lambda peer: None,
        on_told: Callable[[BrokerId, Mapping[BrokerId, Endpoint]], None] = lambda peer, voters: None,
        source_of: Callable[[Link], str] = lambda link: "",
        trusted_address_of: Callable[[BrokerId], Endpoint | None] = lambda peer: None,
    ) -> None:
        """Create the links of a node.

        `on_dropped` is called for each link that was closed because its peer broke the protocol; the peer is -1 if it
        is unknown.
        `on_heard` is called for each peer that dialed this node, with the address at which it can be dialed in turn,
        and `on_gone` when that link is closed. `on_told` is called with the voters that a dialed peer reports.
        `source_of` returns the host from which a link was dialed, and `trusted_address_of` a node's address in the log
        or the configuration.
        """
        self._source_of = source_of
        self._trusted_address_of = trusted_address_of
        self._on_heard = on_heard
        self._on_told = on_told
        self._on_gone = on_gone
        self._identity = identity
        self._on_dropped = on_dropped
        self._said = Hello(
            protocol_version=PROTOCOL_VERSION,
            cluster_id=identity.cluster_id,
            node_id=identity.node_id,
            directory_id=bytes(identity.directory_id),
            host=identity.data.host if identity.data is not None else "",
            port=identity.data.port if identity.data is not None else 0,
        )
        self._node: LinkOwner | None = None
        self._voters: dict[BrokerId, Endpoint | None] = {}
        self._leader: BrokerId = NO_BROKER
        self._where: dict[BrokerId, Endpoint] = {}
        """The addresses of peers with a link to this node, and of voters that had one."""
        self._sending: dict[BrokerId, Link] = {}
        """Dialed links whose hello was answered, by peer."""
        self._receiving: dict[BrokerId, Link] = {}
        """Accepted links whose hello has arrived, by peer."""
        self._senders: dict[Link, BrokerId] = {}
        """The peer of each of these links."""
        self._greeted: set[Link] = set()
        """Accepted links whose hello was answered, until they close: one of them may have been replaced by a newer
        link."""
        self.dialed: LinkHandler = _Handler(self._greet, self._on_answer, self._sends_no_more)
        """The handler of links that this node dialed; `link.peer` is the peer that it meant to reach."""
        self.accepted: LinkHandler = _Handler(lambda link: None, self._on_received, self._receives_no_more)
        """The handler of links that peers dialed. The hello names the peer; if `link.peer` is known, it must be the
        same (S12)."""

    def attach(self, node: LinkOwner) -> None:
        """Set the node that receives the messages."""
        self._node = node

    def send(self, peer: BrokerId, message: bytes) -> None:
        """Send on the link dialed to this peer, or drop the message if there is none."""
        link = self._sending.get(peer)
        if link is not None:
            link.send([message])

    # --- Inside ---

    @property
    def _attached(self) -> LinkOwner:
        if self._node is None:
            raise InvariantViolation("links opened before a node was attached")
        return self._node

    def _drop(self, link: Link, error: RemoteProtocolError) -> None:
        """Close a link whose peer broke the protocol."""
        self._on_dropped(self._senders.get(link, BrokerId(link.peer)), error)
        link.close()

    def _greet(self, link: Link) -> None:
        """Send this node's hello."""
        link.send([encode(self._said)])

    def set_voters(self, configuration: Configuration) -> None:
        """Set the voters that hellos name, and send new hellos to the peers that dialed this node."""
        self._voters = {voter.node_id: voter.endpoint for voter in configuration.voters}
        self._tell()

    def set_leader(self, leader: BrokerId) -> None:
        """Set the leader that hellos name: a new leader may not be known as a voter yet."""
        self._leader = leader
        self._tell()

    def _tell(self) -> None:
        """Send new hellos if their content changed."""
        told = {*self._voters, self._leader} - {NO_BROKER}
        kept = told | self._receiving.keys()
        self._where = {peer: where for peer, where in self._where.items() if peer in kept}
        own = {self._identity.node_id: self._identity.data}
        addresses = {peer: own.get(peer) or self._where.get(peer) or self._voters.get(peer) for peer in sorted(told)}
        voters = tuple(KnownVoter(peer, at.host, at.port) for peer, at in addresses.items() if at is not None)
        if voters != self._said.voters:
            self._said = replace(self._said, voters=voters)
            for link in list(self._receiving.values()):
                self._greet(link)

    def _check(self, message: memoryview, proven: int = NO_BROKER) -> Hello:
        """Decode and check the first frame of a link.

        `proven` is the node that the peer's certificate names, if it has one. Raises `RemoteProtocolError`.
        """
        hello = decode(message)
        if not isinstance(hello, Hello):
            raise RemoteProtocolError("a link must begin with a hello")
        if hello.cluster_id != self._identity.cluster_id:
            raise RemoteProtocolError(f"node {hello.node_id} belongs to cluster {hello.cluster_id!r}")
        if proven not in (NO_BROKER, hello.node_id):
            raise RemoteProtocolError(f"node {proven}, by its certificate, claims to be node {hello.node_id}")
        if not is_dialable(hello.host):
            raise RemoteProtocolError(f"node {hello.node_id} names a host that is no valid name")
        if hello.protocol_version < 1:
            raise RemoteProtocolError(f"node {hello.node_id} speaks protocol {hello.protocol_version}")
        if hello.node_id == self._identity.node_id:
            raise RemoteProtocolError(f"node {hello.node_id} claims to be this node")
        return hello

    def _on_answer(self, link: Link, message: memoryview) -> None:
        """Process a message on a dialed link: the peer's hello."""
        try:
            hello = self._check(message)
            if hello.node_id != link.peer:
                raise RemoteProtocolError(f"node {hello.node_id} answers where node {link.peer} was dialed")
        except RemoteProtocolError as error:
            self._drop(link, error)
        else:
            self._may_send(hello, link)

    def _may_send(self, hello: Hello, link: Link) -> None:
        """Use a dialed link that the peer answered, perhaps not for the first time."""
        peer = BrokerId(hello.node_id)
        former = self._sending.get(peer)
        if former is not link:
            self._sending[peer] = link
            if former is not None:
                former.close()
                self._attached.on_disconnected(peer)
            self._attached.on_connected(peer)
        dialable = (voter for voter in hello.voters if is_dialable(voter.host))
        self._on_told(peer, {BrokerId(voter.node_id): Endpoint(voter.host, voter.port) for voter in dialable})

    def _sends_no_more(self, link: Link) -> None:
        """Process the end of a dialed link."""
        if self._sending.get(BrokerId(link.peer)) is link:
            del self._sending[BrokerId(link.peer)]
            self._attached.on_disconnected(BrokerId(link.peer))

    def _may_receive(self, hello: Hello, link: Link) -> None:
        """Use an accepted link whose hello arrived. Raises `RemoteProtocolError` if there are too many links."""
        peer = BrokerId(hello.node_id)
        former = self._receiving.get(peer)
        if former is None and len(self._receiving) >= PEERS_MAX:
            raise RemoteProtocolError(
                f"no link for node {peer}: the maximum of {PEERS_MAX} nodes have links to this one"
            )
        if former is not None:
            del self._senders[former], self._receiving[peer]
            former.close()
        proven = link.peer != NO_BROKER
        said = Endpoint(hello.host, hello.port) if hello.host else None
        reached = said if proven or said is None else Endpoint(self._source_of(link) or said.host, said.port)
        endpoint = said if proven else self._trusted_address_of(peer) or reached
        if endpoint is not None and self._where.get(peer) != endpoint:
            self._where[peer] = endpoint
            self._tell()
        self._receiving[peer] = link
        self._senders[link] = peer
        self._attached.on_hello(peer, DirectoryId(hello.directory_id), endpoint)
        self._on_heard(peer, reached, proven=proven)

    def _on_received(self, link: Link, message: memoryview) -> None:
        """Process a message on an accepted link: the peer's hello, or after it a message to this node."""
        peer = self._senders.get(link)
        try:
            if peer is not None:
                self._attached.on_message(peer, message)
            elif link in self._greeted:
                return  # a newer link has replaced this one; it is closing
            else:
                self._may_receive(self._check(message, proven=link.peer), link)
                self._greeted.add(link)
                self._greet(link)
        except RemoteProtocolError as error:
            self._drop(link, error)

    def _receives_no_more(self, link: Link) -> None:
        """Process the end of an accepted link."""
        self._greeted.discard(link)
        peer = self._senders.pop(link, None)
        if peer is not None:
            del self._receiving[peer]
            if peer not in self._voters:
                self._where.pop(peer, None)
            self._attached.on_gone(peer)
            self._on_gone(peer)


def is_dialable(host: str) -> bool:
    """Return whether a resolver accepts the host as a name or address, or it is empty; a resolver raises for anything
    else."""
    try:
        return host.isprintable() and bool(host.encode("idna") or not host)
    except UnicodeError:
        return False


class _Handler:
    """A `LinkHandler` made of functions: one for dialed links and one for accepted ones."""

    def __init__(
        self,
        opened: Callable[[Link], None],
        message: Callable[[Link, memoryview], None],
        closed: Callable[[Link], None],
    ) -> None:
        self._opened = opened
        self._message = message
        self._closed = closed

    def on_opened(self, link: Link) -> None:
        self._opened(link)

    def on_message(self, link: Link, message: memoryview) -> None:
        self._message(link, message)

    def on_closed(self, link: Link) -> None:
        self._closed(link)
