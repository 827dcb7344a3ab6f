"""Output files of processes that run without end."""

from __future__ import annotations

from pathlib import Path

from local_backend.runtime.shortening import NOTE, shorten


def test_a_long_output_keeps_its_last_lines_and_grows_on(tmp_path: Path) -> None:
    path = tmp_path / "stderr"
    with path.open("ab", buffering=0) as output:
        output.write(b"".join(b"line %03d\n" % number for number in range(100)))
        assert not shorten(path, 900, 40) and path.stat().st_size == 900
        assert shorten(path, 899, 40)
        output.write(b"next\n")
    assert path.read_bytes() == NOTE + b"line 096\nline 097\nline 098\nline 099\nnext\n"


def test_nothing_in_the_place_of_an_output_is_shortened(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"x" * 1000)
    (tmp_path / "stdout").hardlink_to(other)
    assert not shorten(tmp_path / "stdout", 10, 5) and not shorten(tmp_path / "missing", 10, 5)
    assert other.stat().st_size == 1000
