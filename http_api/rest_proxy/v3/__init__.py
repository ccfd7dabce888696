"""Version 3 of the REST Proxy API."""
