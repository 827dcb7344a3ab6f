"""Submissions: a request becomes a checked JobSpec, stored files and a row, or leaves nothing."""
