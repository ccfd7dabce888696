"""The voters of the quorum: identities, configurations, changes, lost disks."""
