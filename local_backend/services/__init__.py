"""What can be done with the server: each method checks permission, quota and input, acts, and records the change."""
