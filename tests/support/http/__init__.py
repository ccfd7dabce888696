"""HTTP peers, servers and clients that tests drive by hand."""
