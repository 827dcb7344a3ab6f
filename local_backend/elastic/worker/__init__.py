"""The worker process: it computes shards of steps."""
