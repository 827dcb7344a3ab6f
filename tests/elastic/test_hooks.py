"""The calls of loggers and callbacks of every generation of the API."""

import pytest
import torch
from callbacks import Callback, LoggerCallback
from fabric_model import FabricModel
from small import MiddleLogger, NewLogger, OldLogger, datasets, fabric
from torch import nn

from local_backend.elastic.script.hooks import LoggerHooks, Values, call_step_hooks, has_step_hooks

pytestmark = pytest.mark.usefixtures("result_dir")


def test_older_hooks_get_the_recorded_values():
    logger = OldLogger()
    model, _ = fabric(driver_logger=logger)
    model.train(2, 4, 2)
    # 22 samples in batches of 4: six batches per epoch, the last one with two samples
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


def test_older_and_newer_hooks_get_consistent_values():
    old, new = OldLogger(), NewLogger()
    fabric(driver_logger=old)[0].train(1, 4, 2)
    fabric(driver_logger=new)[0].train(1, 4, 2)
    for (_, accuracy, _, _), (metrics, _, _, _) in zip(old.train, new.train, strict=True):
        assert accuracy == metrics["accuracy"]
    first_old, first_new = old.train[0], new.train[0]
    assert first_old[0] == pytest.approx(first_new[0]["loss"] / 4)
    assert old.test[0][0] == new.test[0][0]["loss"]


def test_hooks_may_take_further_arguments_as_rest():
    class Older:
        def log_train_metrics(self, loss, acc, *rest):
            self.train = (loss, acc, *rest)

    class Newer:
        def log_train_metrics(self, metrics, *rest):
            self.train = (metrics, *rest)

    older, newer = Older(), Newer()
    fabric(driver_logger=older)[0].train(1, 4, 2)
    fabric(driver_logger=newer)[0].train(1, 4, 2)
    assert isinstance(older.train[0], float)
    assert older.train[1:] == (newer.train[0]["accuracy"], 0, 1)
    assert newer.train[1:] == (6, 0, 1)


def logger_of(train, test):
    """Return a logger whose hooks have these parameters and record their arguments."""
    body = f"""
class Logger(LoggerCallback):
    def log_train_metrics(self, {train}): self.train = tuple(value for key, value in locals().items() if key != "self")
    def log_test_metrics(self, {test}): self.test = tuple(value for key, value in locals().items() if key != "self")
"""
    names = {"LoggerCallback": LoggerCallback}
    exec(body, names)
    return names["Logger"]()


#: The arguments of one report for each generation, by hook.
OLDER, NEWER = {"train": (0.5, 0.25, 7, 2), "test": (0.5, 0.25, 7, 2)}, {"train": ({}, 9, 1, 2), "test": ({}, 9, 1)}


@pytest.mark.parametrize(
    ("train", "test", "older"),
    [
        # as recorded
        ("loss, acc, completed_batch, worker=0", "loss, acc, completed_batch, worker=0", "train test"),
        ("metrics, completed_batch, epoch, worker=0", "metrics, completed_batch, epoch", ""),
        ("metrics, iteration, epoch, workers", "metrics, iteration, epoch", ""),
        # one hook determines the style of the other
        ("loss, acc, completed_batch, worker=0", "*args", "train test"),
        ("*args", "cur_loss, cur_acc, batch, worker=0", "train test"),
        ("metrics, iteration, epoch, workers", "*args", ""),
        ("a, b, c, d=0", "metrics, iteration, epoch", ""),
        ("loss, acc, completed_batch", "x, y, z", "train test"),
        # each hook determines its own style
        ("loss, acc, completed_batch, worker=0", "metrics, iteration, epoch", "train"),
        ("metrics, iteration, epoch, workers", "loss, acc, batch, worker=0", "test"),
        # no name determines the style, and the number of workers is optional or stands where newer hooks have none
        ("l, a, n, w=0", "*args", "train test"),
        ("*args", "l, a, n, w", "train test"),
        ("logs, iteration, epoch, workers=1", "logs, iteration, epoch", ""),
        ("m, i, e, w=0", "m, i, e", ""),
        # nothing determines the style
        ("*args", "*args", ""),
        ("a, b, c, d", "a, b, c", ""),
    ],
)
def test_a_hook_of_unclear_style_has_the_style_of_the_other_hook(train, test, older):
    logger = logger_of(train, test)
    hooks, values = LoggerHooks(logger), Values(0.5, 0.25, 7, {}, 9, 1, 2)
    hooks.train_metrics(values)
    hooks.test_metrics(values)
    for name, got, parameters in (("train", logger.train, train), ("test", logger.test, test)):
        expected = (OLDER if name in older.split() else NEWER)[name]
        taken = len(parameters.split(","))
        assert got == ((expected,) if parameters == "*args" else expected[:taken]), name


def test_a_class_may_be_a_logger_if_its_hooks_are_static():
    seen = []

    class Static:
        @staticmethod
        def log_train_metrics(metrics, iteration, epoch, workers):
            seen.append(iteration)

    fabric(driver_logger=Static)[0].train(1, 8)
    assert seen == [1, 2, 3]


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


def test_the_default_logger_prints_its_lines(capsys):
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
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True)), (
        "a step with learning rate 0 changed a parameter"
    )


def test_the_model_is_in_evaluation_mode_at_the_end_of_an_epoch():
    """Old scripts export `self.model` as it is, because the exporter of PyTorch then set evaluation mode itself."""

    class Export(Callback):
        def __init__(self):
            super().__init__()
            self.begun, self.exported = [], []

        def on_epoch_begin(self, epoch):
            self.begun.append([part.training for part in self.model.modules()])

        def on_epoch_end(self, epoch, save_model=False):
            one = torch.ones(1, 4)
            self.exported.append(torch.equal(self.model(one), self.model(one)))

    callback = Export()
    # In training mode, BatchNorm refuses one sample, and dropout changes the output.
    network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    FabricModel(
        network, datasets, nn.CrossEntropyLoss(), optimizer, user_callback=[callback], driver_logger=object()
    ).train(3, 8, validation_freq=2)
    assert callback.begun == [[True] * 5] * 3
    assert callback.exported == [True] * 3
    assert network.training


# --- hooks of callbacks


class Steps(Callback):
    def __init__(self):
        self.seen = []

    def on_step_begin(self, step):
        self.seen.append(("begin", step))

    def on_step_end(self, step, logs):
        self.seen.append(("end", step, logs))


class Other:
    """A callback without a base class, with the hook names of another library."""

    def __init__(self):
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(("begin", batch, logs))

    def on_batch_end(self, batch):
        self.seen.append(("end", batch))


def test_step_hooks_are_called_by_all_their_names():
    steps, other = Steps(), Other()
    logs = {"loss": 0.5}
    call_step_hooks([steps, other, Callback()], "begin", 7)
    call_step_hooks([steps, other, Callback()], "end", 7, logs)
    assert steps.seen == [("begin", 7), ("end", 7, {"loss": 0.5})]
    assert other.seen == [("begin", 7, {}), ("end", 7)]
    steps.seen[1][2]["loss"] = 0.0
    assert logs == {"loss": 0.5}, "a hook changed the dict of the other hooks"
    assert has_step_hooks([Other()])
    assert not has_step_hooks([Callback(), object()])


def test_an_unknown_hook_is_refused():
    class Typo(Callback):
        def on_epoch_ends(self, epoch):
            """Do nothing; the engine never calls it."""

    class Static:
        @staticmethod
        def on_exception(error):
            """Do nothing; the engine never calls it."""

    with pytest.raises(TypeError, match=r"Typo\.on_epoch_ends is not a hook: .*on_epoch_end, .*on_train_batch_end"):
        fabric(user_callback=[Typo()])
    with pytest.raises(TypeError, match=r"Static\.on_exception is not a hook"):
        fabric(user_callback=[Static()])


def test_other_attributes_of_callbacks_are_accepted():
    class Fine(Callback):
        on_time = True

        def log(self):
            """Do nothing; this is not a hook."""

    fabric(user_callback=[Fine()])
