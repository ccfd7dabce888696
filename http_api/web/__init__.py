"""The HTTP server: middleware, bodies, content negotiation, problem documents."""
