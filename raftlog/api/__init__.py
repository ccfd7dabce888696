"""The JSON documents of `/v1`, each written once: the API answers with them and clients read them, and the reverse."""
