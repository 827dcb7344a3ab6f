"""Samples: the same for every number of workers."""
