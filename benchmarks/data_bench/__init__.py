"""Benchmarks of data: loading.py, object_store.py and tables.py."""
