"""The node's TLS: loading and renewal of files, names in certificates, expiry."""
