"""The bodies, queries and answers of the REST calls as types, one file per topic. Answers are TypedDicts: the type
checker checks the code that makes them, and /openapi.json describes them. Bodies that routes check are pydantic
models."""
