"""The console: static files that any browser may load, which hold no data."""
