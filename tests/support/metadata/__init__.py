"""A cluster image with a quorum of one, random commands, and a controller in virtual time."""
