"""How a request becomes a checked JobSpec, files in their place, and a row: all of it or nothing."""
