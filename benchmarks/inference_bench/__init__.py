"""The sides of benchmarks/inference.py: the same model behind each server."""
