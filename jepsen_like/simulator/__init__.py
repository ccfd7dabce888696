"""A whole cluster in one thread on virtual time: the product's cores and shells on simulated ports."""
