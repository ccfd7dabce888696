"""Access tokens of an identity provider, and the keys that verify them."""
