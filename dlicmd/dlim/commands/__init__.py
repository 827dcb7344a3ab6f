"""The commands of `dlim`, by topic. Each takes a session, and returns the exit code."""
