"""The runtime makes processes match the allocation: supervisor (in the server), nursery, runner, and their files."""
