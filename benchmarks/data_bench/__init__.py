"""Parts of benchmarks/data.py."""
