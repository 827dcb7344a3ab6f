"""The promised numbers of random cases."""

from __future__ import annotations

from cases import CASES

#: Input that users type or keep in files and variables.
OF_USERS = ("words", "command lines", "args of submissions", "data parts of submissions", "data sources", "YAML files",
            "environments")


def test_the_numbers_of_cases_are_as_promised() -> None:
    assert sum(some for some, _ in CASES.values()) >= 2000
    assert sum(many for _, many in CASES.values()) >= 20_000
    assert sum(CASES[what][0] for what in OF_USERS) >= 5000
    assert CASES["calls of the API"][1] >= 10_000
