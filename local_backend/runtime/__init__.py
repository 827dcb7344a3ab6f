"""Makes the world equal the allocation: supervisor (in the server), nursery, runner of a job, and their files."""
