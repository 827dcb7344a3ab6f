"""Inference: kernels that answer requests, the gateway in front of them, and the loop that scales them."""
