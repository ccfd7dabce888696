"""The agreed facts: commands, the cluster image, the controller and the quorum that orders them."""
