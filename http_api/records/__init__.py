"""Records in request and response bodies."""
