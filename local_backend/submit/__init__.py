"""Submissions: a request becomes a checked Workload, stored files and a row, or leaves nothing."""
