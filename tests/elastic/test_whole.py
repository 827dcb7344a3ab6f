"""Metrics over the whole test set."""

import pytest
import torch
from small import TEST_SAMPLES, datasets, fabric
from torch import nn

from local_backend.elastic.errors import EngineError
from local_backend.elastic.script.whole import WholeSet, joined

pytestmark = pytest.mark.usefixtures("result_dir")


class Median(nn.Module):
    """A metric with the interface of torchmetrics: a module with buffers, callable, with reset, update and compute."""

    def __init__(self):
        super().__init__()
        self.register_buffer("values", torch.empty(0))
        self.passes = 0

    def forward(self, outputs, labels):
        raise AssertionError("this metric is not computed by batches")

    def reset(self):
        self.values = torch.empty(0)
        self.passes += 1

    def update(self, outputs, labels):
        self.values = torch.cat([self.values, outputs[:, 0]])

    def compute(self):
        return self.values.median()


def test_objects_and_functions_get_the_whole_test_set():
    def median(outputs, labels):
        assert len(outputs) == len(labels) == TEST_SAMPLES
        return outputs[:, 0].median().item()

    median.whole_set = True

    def batch_mean(outputs, labels):
        return outputs[:, 0].mean()

    trained, model = fabric(metrics=[Median(), median, batch_mean])
    history = trained.train(2, 4, 2)
    assert set(history) == {
        "loss", "accuracy", "batch_mean", "val_loss", "val_accuracy", "val_Median", "val_median", "val_batch_mean", "lr"
    }
    with torch.no_grad():
        outputs = model(datasets()[1].tensors[0])
    expected = outputs[:, 0].median().item()
    assert history["val_Median"] == history["val_median"]
    assert history["val_Median"][-1] == pytest.approx(expected)
    assert history["val_batch_mean"][-1] == pytest.approx(outputs[:, 0].mean().item())
    plain = fabric()[0].train(2, 4, 2)
    assert {name: history[name] for name in plain} == plain


def test_a_value_that_is_not_a_number_is_refused_with_the_metrics_name():
    class Strange:
        def update(self, outputs, labels):
            """Do nothing."""

        def compute(self):
            return torch.ones(3)

    with pytest.raises(EngineError, match="the metric Strange must return one number for the test set"):
        fabric(metrics=[Strange()])[0].train(1, 8, 2)


class Both:
    """A collection of metrics: `compute` returns several values."""

    def __init__(self, factor: int) -> None:
        self.factor, self.count = factor, 0

    def reset(self):
        self.count = 0

    def update(self, outputs, labels):
        self.count += self.factor * len(labels)

    def compute(self):
        return {"a": self.count, "b": 0.25 * self.count}


def test_a_metric_may_return_several_values():
    whole = WholeSet({"Both": Both(1)}, torch.device("cpu"))
    whole.update(None, torch.tensor([1, 2]))
    assert whole.compute({}) == {"a": 2.0, "b": 0.5}


def test_update_may_take_outputs_and_labels_as_a_pair():
    class Pairs(Both):
        def update(self, output):
            outputs, labels = output
            super().update(outputs, labels)

    whole = WholeSet({"Pairs": Pairs(1)}, torch.device("cpu"))
    whole.update(torch.ones(3), torch.ones(3))
    assert whole.compute({}) == {"a": 3.0, "b": 0.75}


def test_equal_names_in_two_collections_have_entries_of_their_own():
    def a(outputs, labels):
        return 7.0

    history = fabric(metrics=[a, Both(1), Both(10)])[0].train(1, 4, 2)
    samples = len(datasets()[1])
    assert {name: values[0] for name, values in history.items() if name.startswith(("val_a", "val_b"))} == {
        "val_accuracy": history["val_accuracy"][0], "val_a": 7.0, "val_a_2": samples, "val_b": samples / 4,
        "val_a_3": 10 * samples, "val_b_2": 10 * samples / 4,
    }


def test_metrics_with_one_name_have_entries_of_their_own():
    def whole(factor):
        def metric(outputs, labels):
            return factor * len(labels)

        metric.whole_set = True
        return metric

    trained, _ = fabric(metrics=[lambda outputs, labels: 1.0, whole(2), lambda outputs, labels: 3.0, whole(4)])
    history = trained.train(1, 4, 2, monitor="val_metric_2")
    samples = len(datasets()[1])
    assert (history["<lambda>"], history["<lambda>_2"]) == ([1.0], [3.0])
    assert (history["val_metric"], history["val_metric_2"]) == ([2 * samples], [4 * samples])


def test_batches_of_every_shape_are_joined():
    parts = [{"x": (torch.ones(2, 3), [torch.tensor(1.0)])}, {"x": (torch.zeros(1, 3), [torch.tensor(2.0)])}]
    whole = joined(parts)
    assert whole["x"][0].shape == (3, 3)
    assert whole["x"][1][0].tolist() == [1.0, 2.0]
