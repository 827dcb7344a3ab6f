"""The values of epochs, and the decisions that depend on them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local_backend.elastic.hub.events import BatchResult
from local_backend.elastic.hub.watching import (
    Totals,
    Watch,
    WatchRule,
    append_history,
    mode_of,
    since_best,
    validation_values,
)
from local_backend.elastic.script.meter import Meter

RESULTS = st.lists(
    st.builds(
        BatchResult, st.just(0), st.integers(1, 9), st.floats(0, 5), st.integers(0, 9),
        # In a step with several phases, the results of each phase have other metrics.
        st.dictionaries(st.sampled_from(["spread", "loss_d", "loss_g"]), st.floats(-1, 1)),
    ),
    min_size=1, max_size=20,
)


@given(RESULTS, st.integers(1, 20))
def test_totals_equal_the_values_of_loggers_for_every_grouping_of_steps(results, size):
    meter, totals = Meter(), Totals()
    for result in results:
        meter.add(result)
    for start in range(0, len(results), size):
        totals = totals.add(results[start : start + size])
    assert totals.values() == meter.metrics


def test_an_unknown_accuracy_is_omitted():
    assert set(Totals().add([BatchResult(0, 4, 0.5, None)]).values()) == {"loss"}
    assert validation_values((BatchResult(0, 1, 0.1, None, {"f1": 0.3}),)) == {"val_loss": 0.1, "val_f1": 0.3}
    assert Totals().values() == validation_values(()) == {}


@pytest.mark.parametrize(
    ("name", "mode"),
    [("loss", "min"), ("val_loss", "min"), ("val_error", "min"), ("rmse", "min"), ("accuracy", "max"), ("f1", "max")],
)
def test_the_mode_follows_from_the_name_of_the_value(name, mode):
    assert mode_of(name) == mode


def test_epochs_since_the_best_are_counted():
    assert since_best([3.0, 2.0, 2.0, 2.5], WatchRule("loss")) == 2
    assert since_best([0.1, 0.3, 0.2], WatchRule("accuracy")) == 1
    assert since_best([3.0, 2.9, 2.8], WatchRule("loss", min_delta=0.5)) == 2
    assert since_best([3.0, 2.9], WatchRule("loss", "max")) == 1
    assert since_best([math.nan, math.nan], WatchRule("loss")) == 2


def test_early_stopping_counts_only_epochs_with_the_value():
    watch = Watch(stopping=WatchRule(), patience=1)
    better, worse = {"loss": 1.0, "val_loss": 1.0}, {"loss": 0.1, "val_loss": 2.0}
    assert watch.stops([better, {"loss": 5.0}], True) is None
    assert watch.stops([better, {"loss": 5.0}, worse], True) == "val_loss has not improved for 1 epoch"
    assert watch.stops([better, worse], False) is None, "without a test set the loss must count"
    assert Watch().stops([better, worse], True) is None


def test_the_best_epoch_is_detected():
    watch = Watch(best=WatchRule("accuracy"))
    assert watch.is_best([{"accuracy": 0.1}], True)
    assert not watch.is_best([{"accuracy": 0.1}, {"accuracy": 0.1}], True)
    assert not watch.is_best([{"accuracy": math.nan}], True)
    assert not watch.is_best([{"accuracy": 0.1}, {"loss": 0.1}], True)


def test_an_unknown_value_is_named_with_the_available_values():
    watch = Watch(stopping=WatchRule("val_f1"), patience=1)
    values = {"loss": 1.0, "val_loss": 1.0}
    assert watch.unknown(values, True, True) == (
        "early_stopping monitors 'val_f1', but an epoch has no such value; available: loss, val_loss"
    )
    assert watch.unknown({"loss": 1.0}, False, True) is None, "a validated epoch may have the value"
    assert watch.unknown({"loss": 1.0}, False, False) is not None
    assert Watch(best=WatchRule("f1")).unknown({"loss": 1.0}, False, True) is not None


def test_the_history_has_an_item_for_each_epoch():
    history = {}
    append_history(history, 0, {"loss": 3.0})
    append_history(history, 1, {"loss": 2.0, "val_loss": 5.0})
    append_history(history, 2, {"loss": 1.0})
    assert history["loss"] == [3.0, 2.0, 1.0]
    assert math.isnan(history["val_loss"][0])
    assert history["val_loss"][1:] == [5.0, 5.0]
    append_history(history, 1, {"loss": 7.0, "val_loss": 8.0})
    assert history["loss"] == [3.0, 7.0], "a repeated epoch must replace its value and later values"
