"""The commands, one function each, and what only they need."""
