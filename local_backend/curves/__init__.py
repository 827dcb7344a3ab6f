"""Curves of metrics: readers for what training programs write, and the curves of an exec with their file."""
