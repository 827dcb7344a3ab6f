"""FabricModel in one process, as a plain script uses it: arguments, hooks, user functions, files."""

import os
import threading
import zipfile

import numpy as np
import pytest
import torch
from callbacks import Callback, LoggerCallback
from fabric_model import FabricModel
from pyedt.fabric_model import FabricModel as PyedtFabricModel
from support import eventually
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from local_backend.elastic.errors import EngineError
from local_backend.elastic.training import samples_right

SAMPLES = 22
TEST_SAMPLES = 9


@pytest.fixture(autouse=True)
def result_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("RESULT_DIR", str(tmp_path / "result"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("DLI_RUNNER_FD", raising=False)
    return tmp_path / "result"


def datasets():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(SAMPLES, 4, generator=generator), torch.arange(SAMPLES) % 3
    return TensorDataset(x, y), TensorDataset(x[:TEST_SAMPLES], y[:TEST_SAMPLES])


def parts():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def fabric(**changes):
    model, optimizer = parts()
    return FabricModel(model, datasets, F.cross_entropy, optimizer, **changes), model


class OldLogger(LoggerCallback):
    def __init__(self):  # deliberately without super().__init__()
        self.train, self.test, self.begun, self.ended = [], [], 0, 0

    def on_train_begin(self):
        self.begun += 1

    def log_train_metrics(self, loss, acc, completed_batch, worker=0):
        self.train.append((loss, acc, completed_batch, worker))

    def log_test_metrics(self, loss, acc, completed_batch, worker=0):
        self.test.append((loss, acc, completed_batch))

    def on_train_end(self):
        self.ended += 1


class NewLogger:
    """The newest generation: no base class."""

    def __init__(self):
        self.train, self.test = [], []

    def log_train_metrics(self, metrics, iteration, epoch, workers):
        self.train.append((metrics, iteration, epoch, workers))

    def log_test_metrics(self, metrics, iteration, epoch):
        self.test.append((metrics, iteration, epoch))


class MiddleLogger(LoggerCallback):
    def __init__(self):
        self.train, self.test = [], []

    def log_train_metrics(self, metrics, completed_batch, epoch, worker=0):
        self.train.append((metrics, completed_batch, epoch, worker))

    def log_test_metrics(self, metrics, completed_batch, epoch):
        self.test.append((metrics, completed_batch, epoch))


def test_one_class_under_both_names():
    assert FabricModel is PyedtFabricModel


# --- hooks


def test_older_hooks_get_what_was_recorded():
    logger = OldLogger()
    model, _ = fabric(driver_logger=logger)
    model.train(2, 4, 2)
    # 22 samples in batches of 4: six batches an epoch, the last one of two samples
    assert [entry[2] for entry in logger.train] == [2, 3, 4, 5, 6, 0] * 2
    assert all(isinstance(value, float) for entry in logger.train for value in entry[:2])
    assert all(0 <= entry[1] <= 1 for entry in logger.train)
    assert len(logger.test) == 2
    assert (logger.begun, logger.ended) == (1, 1)


@pytest.mark.parametrize("kind", [NewLogger, MiddleLogger])
def test_newer_hooks_get_metrics_and_totals(kind):
    logger = kind()
    model, _ = fabric(driver_logger_callback=logger)
    model.train(2, 4, 2)
    assert [entry[1] for entry in logger.train] == list(range(1, 13))
    assert [entry[2] for entry in logger.train] == [0] * 6 + [1] * 6
    assert {entry[3] for entry in logger.train} == {1}
    assert set(logger.train[0][0]) == {"loss", "accuracy"}
    assert [(entry[1], entry[2]) for entry in logger.test] == [(0, 0), (0, 1)]


def test_old_and_new_values_tell_the_same_story():
    old, new = OldLogger(), NewLogger()
    fabric(driver_logger=old)[0].train(1, 4, 2)
    fabric(driver_logger=new)[0].train(1, 4, 2)
    for (_, accuracy, _, _), (metrics, _, _, _) in zip(old.train, new.train, strict=True):
        assert accuracy == metrics["accuracy"]
    first_old, first_new = old.train[0], new.train[0]
    assert first_old[0] == pytest.approx(first_new[0]["loss"] / 4)
    assert old.test[0][0] == new.test[0][0]["loss"]


def test_a_logger_may_lack_hooks():
    fabric(driver_logger=object())[0].train(1, 8)


def test_user_metrics_are_means_over_samples():
    def constant(outputs, labels):
        return float(len(labels))

    class Named:
        def __call__(self, outputs, labels):
            return torch.tensor(2.0)

    logger = NewLogger()
    fabric(driver_logger=logger, metrics=[constant, Named()])[0].train(1, 4, 2)
    assert logger.train[-1][0]["Named"] == 2.0
    assert logger.train[-1][0]["constant"] == pytest.approx((20 * 4 + 2 * 2) / 22)
    assert logger.test[0][0]["constant"] == pytest.approx((8 * 4 + 1) / 9)


def test_worker_loggers_get_the_batch_of_the_step():
    old, new = OldLogger(), NewLogger()
    fabric(worker_logger=old, driver_logger=object())[0].train(1, 8, 2)
    fabric(worker_logger_callback=new, driver_logger=object())[0].train(1, 8, 2)
    assert [entry[2] for entry in old.train] == [1, 2, 3]
    assert [entry[0] for entry in old.train] == [entry[0]["loss"] for entry in new.train]


def test_worker_loggers_get_validation_batch_by_batch():
    old, new = OldLogger(), NewLogger()
    fabric(worker_logger=old, driver_logger=object())[0].train(2, 4, 2)
    fabric(worker_logger_callback=new, driver_logger=object())[0].train(2, 4, 2)
    assert [entry[2] for entry in old.test] == [0, 1, 2] * 2
    assert [entry[1:] for entry in new.test] == [(i, epoch) for epoch in range(2) for i in range(3)]
    assert [entry[0] for entry in old.test] == [entry[0]["loss"] for entry in new.test]


def test_the_default_logger_and_the_lines_around_it(capsys):
    fabric()[0].train(2, 8, 1)
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("start message server 127.0.0.1:")
    assert out[1] == "--------START TRAINING--------"
    blocks = out[2:-2]
    assert len(blocks) == 4 * 6
    assert blocks[0].startswith("Timestamp ")
    assert blocks[0].endswith(", Iteration 1")
    assert blocks[1].startswith("batches :1 ")
    assert blocks[2].startswith("Iteration 2: tag train_accuracy, simple_value ")
    assert blocks[3].startswith("Iteration 2: tag train_loss, simple_value ")
    assert [line.split(":")[0] for line in blocks[2::4]] == [f"Iteration {n}" for n in (2, 3, 0, 2, 3, 0)]
    assert out[-2] == "--------END TRAINING: completed 6 iterations --------"
    assert out[-1].startswith("--------END TRAINING: completed epoch 2 in time ")


# --- callbacks


class Recorder(Callback):
    def __init__(self):
        self.calls = []

    def on_train_begin(self):
        self.calls.append(("begin", self.params["epochs"]))

    def on_epoch_begin(self, epoch):
        self.calls.append(("epoch", epoch, self.params["optimizer"].param_groups[0]["lr"]))
        self.params["optimizer"].param_groups[0]["lr"] = 0.0

    def on_epoch_end(self, epoch, save_model=False):
        self.calls.append(("end", epoch, save_model, type(self.model).__name__))


class Short:
    def on_epoch_end(self, epoch):
        self.seen = epoch


def test_callbacks_see_the_live_optimizer_and_model():
    recorder, short = Recorder(), Short()
    model, network = fabric(user_callback=[recorder, short], driver_logger=object())
    before = [p.detach().clone() for p in network.parameters()]
    model.train(2, 8)
    assert recorder.calls == [
        ("begin", 2),
        ("epoch", 0, 0.1),
        ("end", 0, False, "Sequential"),
        ("epoch", 1, 0.0),
        ("end", 1, True, "Sequential"),
    ]
    assert short.seen == 1
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True)), "rate 0 must not move"


# --- user functions


def test_step_and_test_functions():
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
    model, network = fabric(fn_step_train=step, fn_test=test, fn_args="extra", driver_logger=by_user)
    model.train(2, 4, 2)
    reference, expected = fabric(driver_logger=plain)
    reference.train(2, 4, 2)
    assert set(seen) == {"extra"}
    assert [entry[0] for entry in by_user.train] == [entry[0] for entry in plain.train]
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), expected.parameters(), strict=True))
    assert [set(entry[0]) for entry in by_user.test] == [{"loss"}, {"loss"}]


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
    ],
)
def test_accuracy_of_a_step_function_is_a_count_or_a_fraction(acc, size, right):
    assert samples_right(acc, size) == right


def test_own_collate_function():
    def collate(samples):
        return torch.stack([x for x, _ in samples]) * 0, torch.tensor([int(y) for _, y in samples])

    logger = NewLogger()
    fabric(fn_batch_collate=collate, driver_logger=logger)[0].train(1, 30)
    model, _ = parts()
    expected = F.cross_entropy(model(torch.zeros(SAMPLES, 4)), torch.arange(SAMPLES) % 3).item()
    assert logger.train[0][0]["loss"] == pytest.approx(expected)


# --- what comes out


def test_equals_ordinary_training_when_a_step_is_one_batch():
    model, network = fabric(driver_logger=object())
    model.train(2, SAMPLES, 1)
    reference, optimizer = parts()
    x, y = datasets()[0].tensors
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(reference(x), y).backward()
        optimizer.step()
    for trained, expected in zip(network.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(trained, expected)


def test_a_step_of_several_batches_equals_one_large_batch():
    small, large = fabric(driver_logger=object()), fabric(driver_logger=object())
    small[0].train(2, 4, effective_batch_size=10)
    large[0].train(2, 10, 1)
    for a, b in zip(small[1].parameters(), large[1].parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_files_are_state_dicts_by_epoch(result_dir):
    model, network = fabric(driver_logger=object())
    model.train(5, 8, checkpoint_freq=2)
    names = sorted(path.name for path in (result_dir / "model" / "train").iterdir())
    assert names == sorted(
        f"model_epoch_{k}{suffix}.pth" for k in ("2", "4", "final") for suffix in ("", "_optimizer_state")
    )
    saved = torch.load(result_dir / "model" / "train" / "model_epoch_final.pth", weights_only=True)
    assert all(torch.equal(saved[key], value) for key, value in network.state_dict().items())
    optimizer = torch.load(result_dir / "model" / "train" / "model_epoch_final_optimizer_state.pth", weights_only=True)
    assert optimizer["param_groups"][0]["momentum"] == 0.9
    assert len(optimizer["state"]) == 4


def test_no_checkpoints_but_the_final_one(result_dir):
    fabric(driver_logger=object())[0].train(2, 8, checkpoint_freq=0, validation_freq=0)
    assert len(list((result_dir / "model" / "train").iterdir())) == 2


def test_training_twice_goes_on_from_where_it_was():
    model, network = fabric(driver_logger=object())
    model.train(1, 8)
    once = [p.detach().clone() for p in network.parameters()]
    model.train(1, 8)
    assert not all(torch.equal(a, b) for a, b in zip(once, network.parameters(), strict=True))


@pytest.mark.parametrize("mode", [True, False])
def test_the_model_is_left_in_its_mode_and_without_new_gradients(mode):
    model, network = fabric(driver_logger=object())
    network.train(mode)
    model.train(1, 8, 2)
    assert all(part.training is mode for part in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize("value", [torch.ones(3), np.ones(2), {"a": 1}, None, "0.5"])
def test_a_metric_that_is_no_number_is_named(value):
    def strange(outputs, labels):
        return value

    model, _ = fabric(metrics=[strange])
    with pytest.raises(EngineError, match="the metric strange must return one number per batch"):
        model.train(1, 8, 2)


@pytest.mark.parametrize("value", [torch.tensor(0.5), torch.tensor([0.5]), np.float32(0.5), np.array([0.5]), 0.5])
def test_numbers_that_a_metric_may_return(value):
    logger = NewLogger()
    fabric(metrics=[lambda outputs, labels: value], driver_logger=logger)[0].train(1, 8, 2)
    assert logger.test[0][0]["<lambda>"] == 0.5


def test_settings_of_the_calling_process_are_left_alone():
    torch.manual_seed(11)
    threads, expected = torch.get_num_threads(), torch.get_rng_state()
    model, optimizer = nn.Linear(4, 3), None
    torch.manual_seed(11)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    FabricModel(model, datasets, F.cross_entropy, optimizer, driver_logger=object()).train(1, 8)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), expected)
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_seed_of_the_script_decides_the_order():
    losses = []
    for seed in (1, 1, 2):
        logger = NewLogger()
        model, optimizer = parts()
        torch.manual_seed(seed)
        FabricModel(model, datasets, F.cross_entropy, optimizer, driver_logger=logger).train(1, 4)
        losses.append([entry[0]["loss"] for entry in logger.train])
    assert losses[0] == losses[1] != losses[2]


def test_download_writes_a_zip(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DLI_EXECID", "job-7")
    model, _ = fabric(driver_logger=object())
    model.train(1, 8)
    model.download(str(tmp_path / "out"))
    assert capsys.readouterr().out.splitlines()[-1] == f"Save model:  {tmp_path / 'out' / 'job-7.zip'}"
    with zipfile.ZipFile(tmp_path / "out" / "job-7.zip") as archive:
        assert "model/train/model_epoch_final.pth" in archive.namelist()


def test_onnx_or_one_line_why_not(result_dir, capsys):
    fabric(driver_logger=object(), enable_onnx=True)[0].train(1, 8)
    warned = [line for line in capsys.readouterr().err.splitlines() if "ONNX" in line]
    written = (result_dir / "model" / "trained_model.onnx").exists()
    assert written != bool(warned)
    assert len(warned) <= 1


# --- arguments


def test_every_spelling_of_the_constructor():
    model, optimizer = parts()
    FabricModel(model, datasets, F.cross_entropy, optimizer, [], None, None, False, None, None)
    FabricModel(model, datasets, loss_function=F.cross_entropy, optimizer=optimizer)
    FabricModel(model, datasets, nn.CrossEntropyLoss(), optimizer, driver_logger=OldLogger(), enable_onnx=False)
    FabricModel(
        model,
        datasets,
        F.cross_entropy,
        optimizer,
        metrics=None,
        worker_logger_callback=NewLogger(),
        driver_logger_callback=NewLogger(),
        save_to_onnx=False,
        keras_custom_objects={},
        fn_batch_collate=None,
        user_callback=[Recorder()],
        fn_step_train=None,
        fn_test=None,
        scaleup_function=lambda epoch, most: most,
        fn_args=None,
    )


def test_unknown_keywords_are_named_and_ignored():
    with pytest.warns(UserWarning, match="'frobnicate'"):
        model, _ = fabric(frobnicate=1, driver_logger=object())
    with pytest.warns(UserWarning, match="'speed'"):
        model.train(1, 8, speed="high")


def test_notebook_arguments_are_accepted(recwarn):
    spec = {"nodes": {"num_nodes": 2}}
    fabric(driver_logger=object())[0].train(
        1, 8, worker_memory="16G", driver_memory="1G", worker_num=2, worker_device_num=1, hardware_spec=spec
    )
    assert not [warning for warning in recwarn if "does not know" in str(warning.message)]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model": "net"}, TypeError, "model must be a torch.nn.Module, not a str"),
        ({"datasets_function": None}, TypeError, "datasets_function must be callable"),
        ({"loss_function": "crossentropy"}, TypeError, "loss_function must be callable, not a str"),
        ({"optimizer": "sgd"}, TypeError, "optimizer must be a torch.optim.Optimizer"),
        ({"metrics": ["accuracy"]}, TypeError, "every item of metrics must be callable"),
        ({"user_callback": "x"}, TypeError, "user_callback must be a list"),
        ({"fn_test": 3}, TypeError, "fn_test must be callable"),
        ({"driver_logger": 1, "driver_logger_callback": 2}, ValueError, "the same argument"),
        ({"optimizer": torch.optim.LBFGS(nn.Linear(1, 1).parameters())}, TypeError, "LBFGS is not supported"),
        ({"optimizer": torch.optim.SparseAdam(nn.Linear(1, 1).parameters())}, TypeError, "SparseAdam is not"),
        ({"model": nn.LazyLinear(3)}, ValueError, "call it once with an example batch"),
    ],
)
def test_wrong_arguments_of_the_constructor(changes, error, words):
    model, optimizer = parts()
    values = {"model": model, "datasets_function": datasets, "loss_function": F.cross_entropy, "optimizer": optimizer}
    with pytest.raises(error, match=words):
        FabricModel(**{**values, **changes})


def test_an_optimizer_of_another_model_is_refused():
    model, _ = parts()
    _, optimizer = parts()
    with pytest.raises(ValueError, match="holds no parameter of the model"):
        FabricModel(model, datasets, F.cross_entropy, optimizer)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"epoch_number": 0}, ValueError, "epoch_number must be at least 1, not 0"),
        ({"epoch_number": "10"}, TypeError, "epoch_number must be a whole number, not '10'"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be a whole number"),
        ({"batch_size": True}, TypeError, "batch_size must be a whole number"),
        ({"engines_number": 0}, ValueError, "engines_number must be at least 1"),
        ({"num_dataloader_threads": -1}, ValueError, "num_dataloader_threads must be at least 0"),
        ({"validation_freq": -1}, ValueError, "validation_freq must be at least 0"),
        ({"effective_batch_size": 0}, ValueError, "effective_batch_size must be at least 1"),
        ({"engines_number": 2, "effective_batch_size": 8}, ValueError, "either engines_number or effective_batch"),
    ],
)
def test_wrong_arguments_of_train(arguments, error, words, result_dir):
    model, _ = fabric()
    with pytest.raises(error, match=words):
        model.train(**{"epoch_number": 1, "batch_size": 4, **arguments})
    assert not result_dir.exists(), "nothing may have started"


# --- what user code does wrong


class Endless(IterableDataset):
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
        (lambda: datasets()[0], RuntimeError, "must return two data sets"),
        (lambda: (Endless(), Endless()), RuntimeError, "training set is an IterableDataset"),
        (lambda: (3, 4), RuntimeError, "training set is a int, not a torch.utils.data.Dataset"),
        (lambda: ([], []), RuntimeError, "has no samples"),
        (lambda: (Broken(), Broken()), ValueError, "^boom$"),
        (lambda: ([1, 2], [1]), RuntimeError, r"must be a pair \(inputs, labels\)"),
    ],
)
def test_wrong_data_sets(function, error, words):
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


def test_a_loss_module_with_parameters_and_a_partly_frozen_model_train():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, outputs, labels):
            return F.cross_entropy(outputs * self.scale, labels)

    model, _ = parts()
    model[0].requires_grad_(False)
    loss = Scaled()
    frozen = model[0].weight.clone()
    optimizer = torch.optim.Adam([*model[2].parameters(), *loss.parameters()], 0.01)
    FabricModel(model, datasets, loss, optimizer, driver_logger=object()).train(2, 4, 2)
    assert loss.scale.item() != 1.0
    assert torch.equal(model[0].weight, frozen)


def test_no_thread_and_no_descriptor_is_left():
    fabric(driver_logger=object())[0].train(1, 8)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(3):
        fabric(driver_logger=object())[0].train(1, 8)
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after <= before + 1
    eventually(
        lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("hub")], "threads have ended"
    )
