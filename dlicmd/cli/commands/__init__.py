"""The commands, one function each. Each takes the session and returns the exit code. Errors are raised."""
