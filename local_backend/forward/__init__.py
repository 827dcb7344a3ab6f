"""Forwards the metrics that the programs of execs write to the targets that their users chose."""
