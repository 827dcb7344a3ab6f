"""The gateway: the process that takes requests, and hands them to kernels."""
