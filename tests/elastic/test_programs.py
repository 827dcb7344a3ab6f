"""Programs of users: the same bits alone and on workers that join, leave and die; or a clear refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import programs
import pytest
from programs import DISTURBED, WAYS, Program, corpus, left, run_alone, run_disturbed, run_on, verdict

CORPUS = corpus()
#: Programs of different families that every test run trains; the others are integration tests.
ALWAYS = {
    "batch_norm_drop_last", "counter_in_forward", "gan_phases", "loader_processes", "moco_pointer", "own_generators",
    "plateau", "resumed", "scheduler_step_in_step", "streaming_text", "tiny_gpt", "unknown_argument",
    "weighted_sampler",
}


def most(wanted: Callable[[Program], bool]) -> list[Any]:
    """Return the wanted programs, all but `ALWAYS` marked as integration tests."""
    return [
        program if program.name in ALWAYS else pytest.param(program, marks=pytest.mark.integration)
        for program in CORPUS if wanted(program)
    ]


def ids(program: Program) -> str:
    return program.name


@pytest.mark.parametrize("program", most(lambda one: not one.refused), ids=ids)
def test_disturbed_workers_give_the_same_bits_as_a_single_process(tmp_path: Path, program: Program) -> None:
    outcome = run_alone(tmp_path / "alone", program)
    assert not verdict(program, "alone", tmp_path / "alone", outcome, None)
    reference = left(tmp_path / "alone", outcome.stdout)
    folder = tmp_path / "disturbed"
    assert not verdict(program, "disturbed", folder, run_disturbed(DISTURBED)(folder, program), reference)


@pytest.mark.parametrize("program", most(lambda one: one.refused), ids=ids)
def test_unsupported_programs_are_refused_with_a_message(tmp_path: Path, program: Program) -> None:
    for way, run in (("alone", run_alone), ("2 workers", run_on(2))):
        folder = tmp_path / way.replace(" ", "-")
        assert not verdict(program, way, folder, run(folder, program), None)


@pytest.mark.slow
@pytest.mark.parametrize("program", CORPUS, ids=ids)
def test_every_way_to_run_a_program_gives_the_expected_result(tmp_path: Path, program: Program) -> None:
    assert not programs.matrix(program, tmp_path)


def test_the_page_lists_all_programs_with_the_expected_results() -> None:
    page = programs.PAGE.read_text()
    assert page == programs.page(CORPUS, {}), "run `python tests/elastic/programs.py`"
    assert len(CORPUS) >= 60
    assert {one.name for one in CORPUS} >= ALWAYS
    assert len(WAYS) == 6
