"""The way of a request: from the address of a server to its answer."""
