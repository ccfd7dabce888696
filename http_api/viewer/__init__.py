"""The pages at `/docs`: the OpenAPI documents for people."""
