"""The process that serves one home: lock, database, sockets, and its end."""
