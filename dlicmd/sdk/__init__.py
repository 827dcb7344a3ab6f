"""The Python client: one method per call, typed objects, packing, submission, results."""
