"""The blocking client: the asynchronous one on a thread of its own."""
