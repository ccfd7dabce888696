"""The HTTP/1.1 API for users. It translates requests and decides nothing."""
