"""Errors for wrong members of the definition of a search."""

from __future__ import annotations

from local_backend.errors import Invalid


def definition(sentence: str) -> Invalid:
    return Invalid("search.definition", sentence)


def algorithm(sentence: str) -> Invalid:
    return Invalid("search.algorithm", sentence)


def space(sentence: str) -> Invalid:
    return Invalid("search.space", sentence)
