"""The simulated world: virtual time, network, disk, clocks."""
