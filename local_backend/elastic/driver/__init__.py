"""The driver process: it runs the hub, starts workers and reports."""
