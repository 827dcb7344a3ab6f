"""Lines of a text that arrives in pieces."""

from __future__ import annotations

from itertools import islice, repeat

from dlicmd.sdk.transport import LONGEST_LINE, split_lines


def test_lines_are_joined_over_pieces() -> None:
    assert list(split_lines([b"a", b"b\nc\n", b"\nd"])) == [b"ab", b"c", b"", b"d"]


def test_a_line_without_end_is_cut() -> None:
    found = list(islice(split_lines(repeat(b"x" * 2**16)), 3))
    assert [len(line) for line in found] == [LONGEST_LINE] * 3
