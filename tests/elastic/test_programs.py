"""Programs of users: the same bits alone and on workers that join, leave and die; or a clear refusal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import programs
import pytest
from programs import (
    DISTURBED,
    WAYS,
    Program,
    corpus,
    left,
    run_alone,
    run_disturbed,
    run_on,
    run_with_killed_driver,
    verdict,
)

CORPUS = corpus()
#: Programs that every test run submits to the engine, which trains or refuses them.
ALWAYS = {
    "batch_norm_drop_last", "counter_in_forward", "tiny_gpt", "unknown_argument",
}
#: Programs of the integration tests: some of each family, one for each feature of the engine. The matrix has all.
OFTEN = {
    "batch_norm_in_validation", "changed_directory", "clip_random_projection", "combined_optimizer", "config_module",
    "ctc_speech", "curriculum_in_loaders", "embedding_max_norm", "fourier_operator", "fp16", "fp8_delayed_scaling",
    "gan_phases", "global_objects", "grad_scaler_in_step", "gradient_checkpointing", "graph_batches",
    "grouped_batches_function", "kfac", "late_limit", "layer_made_in_forward", "lbfgs", "loader_processes", "lora",
    "loss_per_sample", "lstm_tagger", "main_args", "moco_pointer", "model_made_anew", "module_state", "nan_loss",
    "optimizer_attributes", "patched_attention", "pool_tokenize", "pruned", "pseudo_labels", "replay_buffer",
    "replay_large", "resumed", "sampler_curriculum", "scheduler_of_a_library", "simclr", "split_at_import",
    "sqlite_ledger", "stop_training", "streaming_shards", "swa", "system_random", "target_library", "torchscript",
    "unet_segmentation", "unknown_hook", "vq_vae", "warmup_sequential", "whole_set_metrics",
}


def chosen(wanted: Callable[[Program], bool]) -> list[Any]:
    """Return the wanted programs of `ALWAYS`, and those of `OFTEN`, which are marked as integration tests."""
    return [
        program if program.name in ALWAYS else pytest.param(program, marks=pytest.mark.integration)
        for program in CORPUS if wanted(program) and program.name in ALWAYS | OFTEN
    ]


def ids(program: Program) -> str:
    return program.name


@pytest.mark.parametrize("program", chosen(lambda one: not one.refused), ids=ids)
def test_disturbed_workers_give_the_same_bits_as_a_single_process(tmp_path: Path, program: Program) -> None:
    outcome = run_alone(tmp_path / "alone", program)
    assert not verdict(program, "alone", tmp_path / "alone", outcome, None)
    reference = left(tmp_path / "alone", outcome.stdout)
    folder = tmp_path / "disturbed"
    assert not verdict(program, "disturbed", folder, run_disturbed(DISTURBED)(folder, program), reference)


@pytest.mark.parametrize("program", chosen(lambda one: one.refused), ids=ids)
def test_unsupported_programs_are_refused_with_a_message(tmp_path: Path, program: Program) -> None:
    for way, run in (("alone", run_alone), ("2 workers", run_on(2))):
        folder = tmp_path / way.replace(" ", "-")
        assert not verdict(program, way, folder, run(folder, program), None)


@pytest.mark.integration
@pytest.mark.parametrize(("name", "point", "worker", "step"), [
    # The second training has the workers 3 and 4.
    ("folds_skipped", "before-reduce", 3, "3"), ("loop_resumed", "before-reduce", 3, "3"),
    ("resume_own_folder", "finishing", 1, "*"), ("replay_buffer", "before-reduce", 1, "7"),
    ("sampler_curriculum", "before-reduce", 1, "4"), ("optimizer_attributes", "before-reduce", 1, "7"),
])
def test_a_program_that_runs_again_after_its_driver_died_gives_the_same_bits(
    tmp_path: Path, name: str, point: str, worker: int, step: str
) -> None:
    (program,) = (one for one in CORPUS if one.name == name)
    reference = left(tmp_path / "alone", run_alone(tmp_path / "alone", program).stdout)
    outcome = run_with_killed_driver(point, worker, step)(tmp_path / "killed", program)
    assert not verdict(program, "killed", tmp_path / "killed", outcome, reference)
    assert "the driver started again" not in outcome.stdout


@pytest.mark.slow
@pytest.mark.parametrize("program", CORPUS, ids=ids)
def test_every_way_to_run_a_program_gives_the_expected_result(tmp_path: Path, program: Program) -> None:
    assert not programs.matrix(program, tmp_path)


def test_the_page_lists_all_programs_with_the_expected_results() -> None:
    page = programs.PAGE.read_text()
    assert page == programs.page(CORPUS, {}), "run `python tests/elastic/programs.py`"
    assert len(CORPUS) >= 60
    assert {one.name for one in CORPUS} >= ALWAYS | OFTEN and not ALWAYS & OFTEN
    assert {one.family for one in CORPUS} == {one.family for one in CORPUS if one.name in ALWAYS | OFTEN}
    assert len(WAYS) == 6
