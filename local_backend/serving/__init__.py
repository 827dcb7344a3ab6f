"""The server process of one home: lock, database, sockets, shutdown."""
