"""HTTP consumers that any node serves, in simulated quorums."""
