"""Programs as people write them: the same bits alone and on workers that come, go and die, or refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import programs
import pytest
from programs import DISTURBED, WAYS, Program, corpus, left, run_alone, run_disturbed, run_on, verdict

CORPUS = corpus()


def ids(program: Program) -> str:
    return program.name


@pytest.mark.parametrize("program", [one for one in CORPUS if not one.refused], ids=ids)
def test_same_bits_alone_and_while_workers_come_go_and_die(tmp_path: Path, program: Program) -> None:
    outcome = run_alone(tmp_path / "alone", program)
    assert not verdict(program, "alone", tmp_path / "alone", outcome, None)
    reference = left(tmp_path / "alone", outcome.stdout)
    folder = tmp_path / "disturbed"
    assert not verdict(program, "disturbed", folder, run_disturbed(DISTURBED)(folder, program), reference)


@pytest.mark.parametrize("program", [one for one in CORPUS if one.refused], ids=ids)
def test_refused_in_a_sentence(tmp_path: Path, program: Program) -> None:
    for way, run in (("alone", run_alone), ("2 workers", run_on(2))):
        folder = tmp_path / way.replace(" ", "-")
        assert not verdict(program, way, folder, run(folder, program), None)


@pytest.mark.slow
@pytest.mark.parametrize("program", CORPUS, ids=ids)
def test_every_way(tmp_path: Path, program: Program) -> None:
    assert not programs.matrix(program, tmp_path)


def test_the_page_lists_all_programs_with_what_is_expected() -> None:
    page = programs.PAGE.read_text()
    assert page == programs.page(CORPUS, {}), "run `python tests/elastic/programs.py`"
    assert len(CORPUS) >= 60
    assert len(WAYS) == 6
