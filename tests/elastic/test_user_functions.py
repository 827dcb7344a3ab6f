"""The user's functions: steps, tests, collate functions, metrics, data sets, losses; and their errors."""

import numpy as np
import pytest
import torch
from callbacks import Callback
from fabric_model import FabricModel
from small import SAMPLES, NewLogger, datasets, fabric, parts
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from local_backend.elastic.errors import EngineError
from local_backend.elastic.worker.user_functions import samples_right

pytestmark = pytest.mark.usefixtures("result_dir")


def test_step_and_test_functions_give_the_results_of_the_engine():
    seen = []

    def step(model, data, eva, train_loader, fn_args):
        inputs, labels = data
        model.get_optimizer().zero_grad()
        outputs = model(inputs)
        loss = model.get_loss_function()(outputs, labels)
        loss.backward()
        right = eva(outputs, labels)
        assert right.dtype == torch.int64
        assert len(train_loader.dataset) == SAMPLES
        seen.append(fn_args)
        return right, loss

    def test(model, test_iter, fn_args):
        assert not model.training
        assert not torch.is_grad_enabled()
        losses = [model.get_loss_function()(model(x), y).item() for x, y in test_iter]
        assert len(losses) == len(test_iter) == 3
        return sum(losses) / len(losses)

    by_user, plain = NewLogger(), NewLogger()
    options = {"fn_args": "extra", "local_state": ["seen"]}
    model, network = fabric(fn_step_train=step, fn_test=test, driver_logger=by_user, **options)
    model.train(2, 4, 2)
    reference, expected = fabric(driver_logger=plain)
    reference.train(2, 4, 2)
    assert set(seen) == {"extra"}
    assert [entry[0] for entry in by_user.train] == [entry[0] for entry in plain.train]
    for a, b in zip(network.parameters(), expected.parameters(), strict=True):
        # The engine scales the loss; after a user's function it scales the gradients instead, so rounding differs.
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0)
    assert [set(entry[0]) for entry in by_user.test] == [{"loss", "accuracy"}] * 2
    assert [entry[0]["accuracy"] for entry in by_user.test] == [0, 0]


def test_several_answers_per_sample_count_as_fractions_of_it():
    def step(model, data, eva, train_loader, fn_args):
        inputs, labels = data
        model.get_optimizer().zero_grad()
        outputs = model(inputs)
        loss = model.get_loss_function()(outputs, labels)
        loss.backward()
        # As in a language model, whose step flattens the tokens of all sequences.
        return eva(outputs.repeat_interleave(4, 0), labels.repeat_interleave(4)), loss

    found = fabric(fn_step_train=step)[0].train(3, 4, 2)["accuracy"]
    assert found == fabric()[0].train(3, 4, 2)["accuracy"]
    assert any(found)


def regression(**changes):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 4, generator=generator)
    data = TensorDataset(x, x.sum(1, keepdim=True))
    torch.manual_seed(3)
    model = nn.Linear(4, 1)
    return FabricModel(
        model, lambda: (data, data), F.mse_loss, torch.optim.SGD(model.parameters(), lr=0.1), **changes
    )


class Seen(Callback):
    def __init__(self):
        self.logs = []

    def on_batch_end(self, batch, logs=None):
        self.logs.append(set(logs))


def test_a_regression_has_no_accuracy():
    seen, logger = Seen(), NewLogger()
    history = regression(user_callback=[seen], driver_logger=logger).train(2, 4, 2)
    assert set(history) == {"loss", "val_loss", "lr"}
    assert seen.logs == [{"loss"}] * 6
    # Loggers of WMLA read the accuracy of every batch.
    assert {entry[0]["accuracy"] for entry in [*logger.train, *logger.test]} == {0}


def test_the_0_of_eva_for_an_unknown_accuracy_is_not_an_accuracy():
    def step(model, data, eva, train_loader, fn_args):
        inputs, labels = data
        model.get_optimizer().zero_grad()
        outputs = model(inputs)
        loss = model.get_loss_function()(outputs, labels)
        loss.backward()
        return eva(outputs, labels), loss

    assert set(regression(fn_step_train=step).train(2, 4, 2)) == {"loss", "val_loss", "lr"}


@pytest.mark.parametrize(
    ("acc", "size", "right"),
    [
        (torch.tensor(3), 8, 3),
        (3.0, 8, 3),
        (0.375, 8, 3),
        (torch.tensor(1.0), 8, 8),
        (1, 8, 1),
        (np.int64(2), 8, 2),
        (np.float32(0.5), 8, 4),
        (float("nan"), 8, None),
        (None, 8, None),
        # percent: not an integer, or more than the number of samples
        (37.5, 8, 3),
        (torch.tensor(100 * 7 / 24), 24, 7),
        (50.0, 24, 12),
        (np.float32(100.0), 24, 24),
        (100 * (1 + 1e-7), 24, 24),
        (8.0, 8, 8),
        (100.0, 200, 200),
        (torch.tensor(100), 200, 100),
        (25.0, 64, 25),
        # neither
        (120.5, 8, None),
        (-0.5, 8, None),
    ],
)
def test_accuracy_of_a_step_function_is_a_count_a_fraction_or_percent(acc, size, right):
    assert samples_right(acc, size) == right


@pytest.mark.parametrize("size", [1, 20, 24, 50, 64, 128])
@pytest.mark.parametrize(
    "scale", [lambda right, size: right, lambda right, size: right / size, lambda right, size: right * 100 / size],
    ids=["count", "fraction", "percent"],
)
def test_the_count_of_eva_decides_the_unit_of_the_accuracy(scale, size):
    for right in range(size + 1):
        acc = torch.tensor(float(scale(right, size)))
        assert samples_right(acc, size, right) == right


def test_a_step_function_may_return_percent():
    """With 20 samples, all percentages are integers and could be counts."""

    def step_of(of):
        def step(model, data, eva, train_loader, fn_args):
            inputs, labels = data
            model.get_optimizer().zero_grad()
            outputs = model(inputs)
            loss = model.get_loss_function()(outputs, labels)
            loss.backward()
            return of(eva(outputs, labels), len(labels)), loss
        return step

    def accuracies(of):
        logger = NewLogger()
        fabric(driver_logger=logger, fn_step_train=step_of(of))[0].train(2, 20, 1)
        return [metrics["accuracy"] for metrics, *_ in logger.train]

    expected = accuracies(lambda right, size: right)
    assert 0 < max(expected) <= 1
    assert accuracies(lambda right, size: right / float(size) * 100.0) == expected
    assert accuracies(lambda right, size: right.mul_(100).item() / size) == expected


def test_an_own_collate_function_is_used():
    def collate(samples):
        return torch.stack([x for x, _ in samples]) * 0, torch.tensor([int(y) for _, y in samples])

    logger = NewLogger()
    fabric(fn_batch_collate=collate, driver_logger=logger)[0].train(1, 30)
    model, _ = parts()
    expected = F.cross_entropy(model(torch.zeros(SAMPLES, 4)), torch.arange(SAMPLES) % 3).item()
    assert logger.train[0][0]["loss"] == pytest.approx(expected)


@pytest.mark.parametrize("value", [torch.ones(3), np.ones(2), {"a": 1}, None, "0.5"])
def test_a_metric_that_returns_no_number_is_named(value):
    def strange(outputs, labels):
        return value

    model, _ = fabric(metrics=[strange])
    with pytest.raises(EngineError, match="the metric strange must return one number per batch"):
        model.train(1, 8, 2)


@pytest.mark.parametrize("value", [torch.tensor(0.5), torch.tensor([0.5]), np.float32(0.5), np.array([0.5]), 0.5])
def test_a_metric_may_return_numbers_of_several_types(value):
    logger = NewLogger()
    fabric(metrics=[lambda outputs, labels: value], driver_logger=logger)[0].train(1, 8, 2)
    assert logger.test[0][0]["<lambda>"] == 0.5


# --- errors of user code


class Nothing(IterableDataset):
    def __iter__(self):
        return iter([])


class Broken(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        raise ValueError("boom")


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (lambda: (*datasets(), None), RuntimeError, "must return the data sets .* a tuple of 3 items"),
        (lambda: dict(zip(("train", "test"), datasets(), strict=True)), RuntimeError, "it returned a dict"),
        (lambda: (Nothing(), Nothing()), RuntimeError, "training set .* has no samples"),
        (lambda: (DataLoader([1]), None), RuntimeError, r"training set is a DataLoader; return its data set \(loader"),
        (lambda: (3, 4), RuntimeError, "training set must be a torch.utils.data.Dataset .*, not a int"),
        (lambda: ([], []), RuntimeError, "has no samples"),
        (lambda: (Broken(), Broken()), ValueError, "^boom$"),
    ],
)
def test_wrong_data_sets_are_refused(function, error, words):
    model, optimizer = parts()
    with pytest.raises(error, match=words):
        FabricModel(model, function, F.cross_entropy, optimizer, driver_logger=object()).train(1, 4)


def test_a_loss_per_sample_is_refused():
    model, optimizer = parts()
    loss = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(RuntimeError, match=r"returned 4 values \(shape \(4,\)\).*reduction='mean'"):
        FabricModel(model, datasets, loss, optimizer, driver_logger=object()).train(1, 4)


def test_an_exception_in_the_drivers_logger_ends_the_training():
    class Bad:
        def log_train_metrics(self, metrics, iteration, epoch, workers):
            raise KeyError("column")

    with pytest.raises(KeyError, match="column"):
        fabric(driver_logger=Bad())[0].train(3, 4)
