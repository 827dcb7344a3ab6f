"""The commands, one function each, and their helpers."""
