"""Credentials in, a caller out: on one request, and on a stream for as long as it is open."""
