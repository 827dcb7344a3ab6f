"""The operations of the server. Each method checks permission, quota and input, acts, and records the change."""
