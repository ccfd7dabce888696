"""Version 2 of the REST Proxy API."""
