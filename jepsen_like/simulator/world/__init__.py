"""The simulated world: virtual time, network, disks, clocks."""
