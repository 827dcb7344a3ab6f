"""Names of metrics and numbers, as all commands of dlicmd understand and print them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlicmd.cli.show.numbers import shown, told_apart
from dlicmd.contract.metric_names import best, best_first, is_loss, is_lower_better, losses_first, meant


@pytest.mark.parametrize("name", [
    "loss", "train/loss", "valLoss", "val_loss", "LOSS", "train loss", "logloss", "eval.rmse", "top1_err",
    "top_1_error", "TrainError", "perplexity", "MSELoss", "MSE", "step time", "losses/total",
])
def test_lower_is_better_for_losses_errors_and_times(name: str) -> None:
    assert is_lower_better(name)


@pytest.mark.parametrize("name", ["accuracy", "val_acc", "f1", "mAP", "bleu", "closest", "reward", "", "损失", "r2",
                                  "meter", "times_seen"])
def test_higher_is_better_for_all_other_names(name: str) -> None:
    assert not is_lower_better(name) and not is_loss(name)


def test_only_names_of_losses_are_losses() -> None:
    assert losses_first(["acc", "val/loss", "rmse", "trainLoss"]) == ["val/loss", "trainLoss", "acc", "rmse"]


@pytest.mark.parametrize(("name", "worst", "order"), [
    ("loss", False, "bac"), ("loss", True, "acb"), ("accuracy", False, "acb"), ("accuracy", True, "bac"),
])
def test_items_are_sorted_by_the_better_direction(name: str, worst: bool, order: str) -> None:
    values = {"x": None, "a": 2.0, "b": 1.0, "c": 2.0, "y": None}
    assert best_first(values, values.get, name, worst) == [*order, "x", "y"]
    assert best(name, [2.0, 1.0]) == (1.0 if name == "loss" else 2.0)


@pytest.mark.parametrize(("pattern", "found"), [
    ("loss", ["loss"]), ("acc*", ["acc", "Accuracy"]), ("*/loss", ["val/loss"]), ("ACC", ["acc"]), ("f1", ["test/f1"]),
    ("nothing", []), ("*", ["loss", "val/loss", "acc", "Accuracy", "test/f1", "a[0]"]), ("a[0]", ["a[0]"]),
])
def test_a_pattern_means_a_name_or_wildcards_or_a_last_part(pattern: str, found: list[str]) -> None:
    assert meant(pattern, ["loss", "val/loss", "acc", "Accuracy", "test/f1", "a[0]", "loss"]) == found


@pytest.mark.parametrize(("value", "text"), [
    (0.1 + 0.2, "0.3"), (0.046512, "0.04651"), (12.0, "12"), (-0.0, "0"), (81234.567, "81235"), (1234567, "1234567"),
    (10**20, "100000000000000000000"), (1e300, "1e+300"), (1e-7 / 3, "3.333e-08"), (float("nan"), "nan"), (0, "0"),
])
def test_numbers_have_4_significant_digits_and_whole_numbers_all(value: float, text: str) -> None:
    assert shown(value) == text and shown(value, "samples/s") == f"{text} samples/s"


@pytest.mark.parametrize(("values", "texts"), [
    ([0.1, 0.25], ["0.1", "0.25"]), ([0.1 + 0.2, 0.3], ["0.30000000000000004", "0.3"]),
    ([0.123456, 0.12346, 0.5], ["0.123456", "0.12346", "0.5"]),
    ([123456789, 123456788.6], ["123456789", "123456788.6"]),
    ([1, 1.0], ["1", "1"]), ([], []),
])
def test_different_numbers_look_different(values: list[float], texts: list[str]) -> None:
    assert told_apart(values) == texts


@given(st.lists(st.floats() | st.integers(-10**30, 10**30), max_size=6))
def test_all_numbers_can_be_shown(values: list[float]) -> None:
    texts = told_apart(values)
    assert len(texts) == len(values) and all(shown(value) for value in values)
    assert len(set(texts)) >= len({value for value in values if not math.isnan(value)})
