"""Parts of benchmarks/scheduling.py."""
