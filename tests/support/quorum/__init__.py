"""Single voters driven by hand, and quorums on simulated time."""
