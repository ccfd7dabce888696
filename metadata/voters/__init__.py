"""The voters of the quorum: their identities and disks, the configurations that name them, and the rules for changing
them."""
