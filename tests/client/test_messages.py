"""Messages on a terminal: lines break between words, and commands can be copied."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlicmd.sdk.messages import fitted

LONG = "dlicmd: a sentence that is not wide"


@pytest.mark.parametrize(("line", "expected"), [
    ("dlicmd: ended; next: dlicmd get 1", ["dlicmd: ended; next: dlicmd get 1"]),
    (f"{LONG}; see: dlicmd get 1", [f"{LONG}; see:", "  dlicmd get 1"]),
    (f"{LONG}: dlicmd result 1 a.bin; dlicmd logs 1. Or stop.",
     [f"{LONG}:", "  dlicmd result 1 a.bin", "  dlicmd logs 1", "  Or stop."]),
    (f"{LONG}, as in: dlicmd run ... -- --x 1", [f"{LONG}, as in:", "  dlicmd run ... -- --x 1"]),
    (f"{LONG}: dlicmd run . --as command", [f"{LONG}:", "  dlicmd run . --as command"]),
    (f"{LONG}; dlicmd goes on", [f"{LONG}; dlicmd", "  goes on"]),
    ("dlicmd: dlicmd packs the folder of a program; name it",
     ["dlicmd: dlicmd packs the folder of a program;", "  name it"]),
    (f"dlicmd: {'x' * 60} in x", ["dlicmd:", f"  {'x' * 60}", "  in x"]),
])
def test_long_messages_break_between_words(line: str, expected: list[str]) -> None:
    assert fitted(line, 45).splitlines() == expected
    assert fitted(line, 0) == line  # not a terminal


@given(st.lists(st.text("ab-/.;:?", min_size=1, max_size=9), min_size=1), st.integers(20, 40))
def test_no_word_is_lost(words: list[str], width: int) -> None:
    fits = fitted(" ".join(words), width)
    assert fits.split() == words and all(len(line) <= width for line in fits.splitlines())
