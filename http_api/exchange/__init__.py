"""One request over HTTP/2 as aiohttp sees it: its connection, its transport, its content and its answer."""
