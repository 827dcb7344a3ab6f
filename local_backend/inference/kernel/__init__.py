"""The kernel's side: the API that kernels are written with, and its connection to the gateway."""
