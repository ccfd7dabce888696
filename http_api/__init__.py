"""What users call over HTTP/1.1. It translates; it decides nothing."""
