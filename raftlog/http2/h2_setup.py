"""Setup of the `h2` library, and the two places that update it about frames that it did not see.

`h2` is used through its public classes; `local_settings`, `max_inbound_frame_size`, `decoder`, `streams` and a stream's
`state_machine` are attributes that are documented or have no underscore.
"""

from __future__ import annotations

import logging

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings
from h2.stream import StreamInputs, StreamState

from .limits import Http2Limits

MAX_HEADER_TABLE_BYTES = 4096
"""Limit of the HPACK table for what is sent, in bytes: RFC 7541's default, even if the peer allows more."""


for _noisy in ("hpack", "h2"):
    # Dozens of lines for each request, if a program sets its own logging to DEBUG. A program that wants them asks for
    # them: logging.getLogger("hpack").setLevel(logging.DEBUG) after the import.
    if logging.getLogger(_noisy).level == logging.NOTSET:
        logging.getLogger(_noisy).setLevel(logging.INFO)


class Connection(H2Connection):
    """Remembers how a bounded number of streams was closed.

    The default of 65,536 takes 6 MB per connection.
    """

    MAX_CLOSED_STREAMS = 1024


_PEER_MAY_SEND = (StreamState.OPEN, StreamState.HALF_CLOSED_LOCAL)


def new_h2(client: bool, limits: Http2Limits) -> H2Connection:
    """Return a connection with our limits as *initial* settings: in the first bytes, not a round trip later."""
    connection = Connection(H2Configuration(client_side=client, header_encoding=None))
    connection.local_settings = Settings(
        client=client,
        initial_values={
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.MAX_FRAME_SIZE: limits.max_frame_bytes,
            SettingCodes.INITIAL_WINDOW_SIZE: limits.window_bytes if client else limits.first_window_bytes,
            SettingCodes.MAX_CONCURRENT_STREAMS: limits.max_concurrent_streams,
            SettingCodes.MAX_HEADER_LIST_SIZE: limits.max_header_list_bytes,
        },
    )
    connection.max_inbound_frame_size = limits.max_control_frame_bytes
    connection.decoder.max_header_list_size = limits.max_header_list_bytes
    return connection


def enforce_ourselves(connection: H2Connection) -> None:
    """Disable `h2`'s own limit of streams, once the settings are announced.

    `h2` would end the connection because of one stream too many, which a peer may open before it has seen the limit.
    Such streams are refused one by one instead.
    """
    enforced = {SettingCodes.MAX_CONCURRENT_STREAMS: 2**31, SettingCodes.ENABLE_PUSH: 0}
    connection.local_settings = Settings(client=connection.config.client_side, initial_values=enforced)


def peer_ended(connection: H2Connection, stream_id: int) -> None:
    """Handle END_STREAM on a DATA frame.

    `h2` saw none of the DATA, so its check of content-length would be wrong: only its state is changed. If it saw the
    end itself (trailers), there is nothing to do.
    """
    machine = connection.streams[stream_id].state_machine
    if machine.state in _PEER_MAY_SEND:
        machine.process_input(StreamInputs.RECV_END_STREAM)
