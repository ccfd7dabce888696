"""The node's TLS files: loading, renewal, expiry."""
