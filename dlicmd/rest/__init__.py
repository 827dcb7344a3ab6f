"""The REST transport: from a request to a server's answer."""
