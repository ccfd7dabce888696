"""How the `h2` library is set up, and the two places where it is told what it did not see.

`h2` is used through its public classes; `local_settings`, `max_inbound_frame_size`, `decoder`, `streams` and a
stream's `state_machine` are attributes that it documents or keeps without underscore.
"""

from __future__ import annotations

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings
from h2.stream import StreamInputs, StreamState

from .limits import Http2Limits

MAX_HEADER_TABLE_BYTES = 4096
"""HPACK state kept for what we send: RFC 7541's default, whatever the peer would allow."""


class Connection(H2Connection):
    """Remembers how a bounded number of streams was closed: 65,536 of them, as by default, are 6 MB a connection."""

    MAX_CLOSED_STREAMS = 1024


_PEER_MAY_SEND = (StreamState.OPEN, StreamState.HALF_CLOSED_LOCAL)


def new_h2(client: bool, limits: Http2Limits) -> H2Connection:
    """With our numbers as *initial* settings: they are in the first bytes sent, not a round trip later."""
    connection = Connection(H2Configuration(client_side=client, header_encoding=None))
    connection.local_settings = Settings(
        client=client,
        initial_values={
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.MAX_FRAME_SIZE: limits.max_frame_bytes,
            SettingCodes.INITIAL_WINDOW_SIZE: limits.window_bytes,
            SettingCodes.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
            SettingCodes.MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
        },
    )
    connection.max_inbound_frame_size = limits.max_control_frame_bytes
    connection.decoder.max_header_list_size = limits.max_header_list_bytes
    return connection


def enforce_ourselves(connection: H2Connection) -> None:
    """Once the settings are announced: `h2` would end the connection over one stream too many, which a peer may open
    before it has seen the number. We refuse such streams one by one."""
    enforced = {SettingCodes.MAX_CONCURRENT_STREAMS: 2**31, SettingCodes.ENABLE_PUSH: 0}
    connection.local_settings = Settings(client=connection.config.client_side, initial_values=enforced)


def peer_ended(connection: H2Connection, stream_id: int) -> None:
    """END_STREAM came on DATA. `h2` saw none of it, so its check of content-length would be wrong: only its state is
    moved. Where it saw the end itself (trailers) there is nothing to do."""
    machine = connection.streams[stream_id].state_machine
    if machine.state in _PEER_MAY_SEND:
        machine.process_input(StreamInputs.RECV_END_STREAM)
