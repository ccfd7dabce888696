"""Security over real sockets."""
