"""Hyper-parameter search: definitions, spaces, algorithms, and the processes that suggest experiments."""
