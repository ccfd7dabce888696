"""The carrier of the data plane: HTTP/2 with a DATA path of its own."""
