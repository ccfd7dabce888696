"""The blocking client: the asyncio client on threads of its own (`raftlog.sync`)."""
