"""Forwards the metrics of execs, as their programs write them, to where their users want them."""
