"""The end of an epoch in a training with real workers: history, schedulers, early stopping, files, hooks."""

import json
import math

import pytest
import torch
from callbacks import Callback
from churn import Training
from fabric_model import FabricModel
from fake_runner import FakeRunner
from scripts import alone, lay_out
from small import NewLogger, datasets, fabric, parts
from torch.nn import functional as F

from local_backend.elastic.errors import EngineError

#: A plateau schedule, a schedule per step, early stopping, the best checkpoint, hooks that change what is trained.
SCRIPT = '''
import hashlib, json, os, sys, time
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset, default_collate
from callbacks import Callback
from fabric_model import FabricModel

result = os.environ["RESULT_DIR"]
hurry = os.path.join(result, "hurry")
options = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}


def collate(samples):
    if not os.path.exists(hurry):
        time.sleep(options.get("pace", 0.0))
    return default_collate(samples)


class Seen(Callback):
    def __init__(self):
        self.rows = []

    def on_epoch_end(self, epoch, save_model=False, logs=None):
        self.rows.append(["end", epoch, dict(logs)])
        if save_model:
            with open(os.path.join(result, "artifacts"), "a") as file:
                file.write(f"{epoch}\\n")

    def on_validation_end(self, epoch, logs):
        self.rows.append(["validated", epoch, logs["val_loss"]])
        self.params["optimizer"].param_groups[0]["weight_decay"] = logs["val_loss"] / 100
        if options.get("stop") == epoch:
            self.model.stop_training = True


def spread(outputs, labels):
    return outputs.std()


class Recall:
    """Needs the whole test set: the smallest recall of a class."""

    def reset(self):
        self.right, self.all = torch.zeros(3), torch.zeros(3)

    def update(self, outputs, labels):
        self.all += torch.bincount(labels, minlength=3)
        self.right += torch.bincount(labels[outputs.argmax(1) == labels], minlength=3)

    def compute(self):
        return {"recall": (self.right / self.all).min()}


def ranked(outputs, labels):
    return outputs[:, 0].argsort()[labels == 0].float().std()


ranked.whole_set = True


def datasets():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(38, 6, generator=g), torch.arange(38) % 3
    return TensorDataset(x, y), TensorDataset(x[:17], y[:17])


torch.manual_seed(4)
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
kind = options.get("scheduler", "plateau")
scheduler = {
    "plateau": lambda: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0),
    "cycle": lambda: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=200),
    "cosine": lambda: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6),
}[kind]()
seen = Seen()
fabric = FabricModel(model, datasets, F.cross_entropy, optimizer,
                     metrics=[spread, Recall(), ranked][: options.get("metrics", 1)], user_callback=[seen],
                     fn_batch_collate=collate, driver_logger=object())
history = fabric.train(options.get("epochs", 6), 4, 3, lr_scheduler=scheduler, validation_freq=1, checkpoint_freq=2,
                       **options.get("train", {}))
digest = hashlib.sha256()
for tensor in [*model.state_dict().values(), *(v["momentum_buffer"] for v in optimizer.state_dict()["state"].values())]:
    digest.update(tensor.numpy().tobytes())
files = {}
folder = os.path.join(result, "model", "train")
for name in sorted(os.listdir(folder)):
    if name.endswith(".pth") and "optimizer" not in name:
        weights = torch.load(os.path.join(folder, name), weights_only=True)
        files[name] = hashlib.sha256(b"".join(t.numpy().tobytes() for t in weights.values())).hexdigest()
with open(os.path.join(result, "outcome.json"), "w") as file:
    json.dump({"digest": digest.hexdigest(), "history": history, "rows": seen.rows, "files": files,
               "lr": optimizer.param_groups[0]["lr"], "last_epoch": scheduler.last_epoch}, file)
'''


def outcome(tmp):
    return json.loads((tmp / "result" / "outcome.json").read_text())


def run(tmp, workers, options):
    ended = FakeRunner(tmp, workers).run(lay_out(tmp, SCRIPT), json.dumps(options))
    assert ended.returncode == 0, ended.stderr
    return ended, outcome(tmp)


class Changing(Training):
    """A training of the script of this module."""

    def __init__(self, tmp, slots, **options):
        super().__init__(tmp, slots, **options)
        (self.code / "train.py").write_text(SCRIPT)


@pytest.mark.integration
def test_the_history_is_the_same_for_every_number_of_workers(tmp_path):
    expected = run(tmp_path / "1", 1, {})[1]
    history = expected["history"]
    assert set(history) == {"loss", "accuracy", "spread", "val_loss", "val_accuracy", "val_spread", "lr"}
    assert {len(series) for series in history.values()} == {6}
    assert history["lr"][0] == 0.5
    assert history["lr"][-1] < 0.5, "the scheduler did not detect the plateau"
    assert expected["rows"][0] == ["end", 0, {name: series[0] for name, series in history.items()}]
    assert [row[1] for row in expected["rows"]] == [epoch for epoch in range(6) for _ in range(2)]
    assert (tmp_path / "1" / "result" / "artifacts").read_text() == "5\n"
    plain = lay_out(tmp_path / "plain", SCRIPT)
    assert alone(tmp_path / "plain", plain).returncode == 0
    assert outcome(tmp_path / "plain") == expected
    assert run(tmp_path / "3", 3, {})[1] == expected


@pytest.mark.integration
@pytest.mark.parametrize(
    "options", [{"scheduler": "cosine", "epochs": 12}, {"scheduler": "cycle", "epochs": 12, "train": {"ema": None}}]
)
def test_resizes_deaths_and_a_restarted_driver_do_not_change_the_result(tmp_path, options):
    expected = run(tmp_path / "undisturbed", 1, options)[1]
    training = Changing(tmp_path / "disturbed", 2, pace=0.02, **options)
    training.attributes = {**FakeRunner.attributes, "snapshot_seconds": "0.05"}
    training.begin()
    try:
        training.wait_for_step(2)
        training.resize(3)
        training.kill(1)
        training.wait_for_step(11)
        training.resize(1)
        training.wait_for_step(17)
        training.kill_driver()
        training.begin()
        training.wait_for_step(22)
        training.kill(max(training.alive()))
        ended = training.finish()
    finally:
        training.abort()
    assert ended.returncode == 0, ended.stderr
    assert outcome(tmp_path / "disturbed") == expected


@pytest.mark.integration
def test_early_stopping_ends_training_and_keeps_the_best_checkpoint(tmp_path):
    options = {"epochs": 20, "train": {"early_stopping": 2, "save_best": "val_accuracy"}}
    ended, found = run(tmp_path / "2", 2, options)
    losses = found["history"]["val_loss"]
    epochs = len(losses)
    assert epochs < 20
    assert min(losses[-2:]) >= min(losses[:-2]), "the last 2 epochs improved the loss"
    best = max(range(epochs), key=found["history"]["val_accuracy"].__getitem__)
    kept = [*range(2, epochs + 1, 2), "best", "final"]
    assert set(found["files"]) == {f"model_epoch_{name}.pth" for name in kept}
    if (best + 1) % 2 == 0:
        assert found["files"]["model_epoch_best.pth"] == found["files"][f"model_epoch_{best + 1}.pth"]
    why = "val_loss has not improved for 2 epochs"
    assert f"STOP TRAINING: after epoch {epochs} of 20: {why}" in ended.stdout
    assert any(f"ends early, after epoch {epochs}: {why}" in message["text"] for message in ended.of("history"))
    assert f"completed epoch {epochs} in time" in ended.stdout
    assert (tmp_path / "2" / "result" / "artifacts").read_text() == f"{epochs - 1}\n", "artifacts were not written once"
    plain = lay_out(tmp_path / "plain", SCRIPT)
    assert alone(tmp_path / "plain", plain, json.dumps(options)).returncode == 0
    assert outcome(tmp_path / "plain") == found


def test_a_callback_ends_training_after_the_epoch(tmp_path):
    ended, found = run(tmp_path, 2, {"epochs": 9, "stop": 2})
    assert len(found["history"]["loss"]) == 3
    assert "a callback has set model.stop_training" in ended.stdout
    assert "model_epoch_final.pth" in found["files"]


@pytest.mark.integration
def test_a_resumed_training_has_the_bits_of_an_uninterrupted_one(tmp_path):
    options = {"epochs": 5, "metrics": 3, "train": {"ema": 0.9, "save_best": True}}
    expected = run(tmp_path / "whole", 2, options)[1]
    assert {"val_recall", "val_ranked"} <= set(expected["history"])
    assert "recall" not in expected["history"]
    first = run(tmp_path / "parts", 2, {**options, "epochs": 3})[1]
    assert first["history"] == {name: series[:3] for name, series in expected["history"].items()}
    folder = tmp_path / "parts" / "result" / "model" / "train"
    options["train"]["resume_from"] = str(folder)
    ended = FakeRunner(tmp_path / "parts", 1, 2).run(tmp_path / "parts" / "code" / "train.py", json.dumps(options))
    assert ended.returncode == 0, ended.stderr
    assert f"resume from {folder / 'model_epoch_final.pth'}: training continues with epoch 4 of 5" in ended.stdout
    resumed = outcome(tmp_path / "parts")
    assert resumed.pop("files")["model_epoch_final.pth"] == expected.pop("files")["model_epoch_final.pth"]
    assert resumed == expected


@pytest.mark.integration
@pytest.mark.parametrize("point", ["told:1", "validating:2", "checkpoint-rename:1"])
def test_a_death_between_two_epochs_changes_nothing(tmp_path, point):
    options = {"epochs": 3, "train": {"save_best": True}}
    expected = run(tmp_path / "undisturbed", 1, options)[1]
    disturbed = FakeRunner(tmp_path / "2", 2)
    ended = disturbed.run(
        lay_out(tmp_path / "2", SCRIPT), json.dumps(options), ELASTIC_FAULT=f"{point}:*:kill"
    )
    assert ended.returncode == 0, ended.stderr
    assert len(ended.of("spawn")) == 3, "the fault did not happen"
    assert outcome(tmp_path / "2") == expected


# --- in the script's own process


@pytest.mark.usefixtures("result_dir")
def test_training_may_begin_again_after_a_callback_has_ended_it():
    class Stop(Callback):
        def on_epoch_end(self, epoch, save_model=False):
            self.model.stop_training = True

    trained, model = fabric(user_callback=[Stop()])
    assert len(trained.train(5, 8, 2)["loss"]) == 1
    assert model.stop_training
    assert len(trained.train(5, 8, 2)["loss"]) == 1


@pytest.mark.usefixtures("result_dir")
def test_the_history_has_the_values_of_the_loggers():
    logger = NewLogger()
    trained, _ = fabric(driver_logger=logger)
    history = trained.train(3, 4, 2, validation_freq=2)
    assert history["loss"] == [logger.train[i][0]["loss"] for i in (5, 11, 17)]
    assert history["accuracy"] == [logger.train[i][0]["accuracy"] for i in (5, 11, 17)]
    assert history["val_loss"][1:] == [logger.test[0][0]["loss"]] * 2
    assert history["lr"] == [0.1] * 3


@pytest.mark.usefixtures("result_dir")
@pytest.mark.parametrize(
    "options", [{"early_stopping": {"patience": 1, "monitor": "f1"}}, {"save_best": "val_f1"}, {"monitor": "f1"}]
)
def test_a_value_that_no_epoch_can_have_is_refused_before_data_is_loaded(options):
    model, optimizer = parts()
    trained = FabricModel(model, lambda: pytest.fail("data is loaded"), F.cross_entropy, optimizer)
    if "monitor" in options:
        options = {**options, "lr_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)}
    with pytest.raises(ValueError, match="no such value; available: loss, accuracy, val_loss, val_accuracy"):
        trained.train(3, 8, 2, **options)


@pytest.mark.usefixtures("result_dir")
@pytest.mark.parametrize("option", ["early_stopping", "save_best"])
def test_a_value_of_a_validation_is_refused_without_a_test_set_before_the_first_step(option):
    model, optimizer = parts()
    trained = FabricModel(
        model, lambda: datasets()[0], None, optimizer, fn_step_train=lambda *_: pytest.fail("a step is computed"),
    )
    value = {"patience": 1, "monitor": "val_loss"} if option == "early_stopping" else "val_loss"
    with pytest.raises(EngineError, match=f"{option} monitors 'val_loss', but no epoch is validated"):
        trained.train(3, 8, 2, **{option: value})


@pytest.mark.usefixtures("result_dir")
def test_a_value_whose_name_is_known_after_an_epoch_is_refused_then():
    class Named:
        def update(self, outputs, labels):
            pass

        def compute(self):
            return {"recall": 0.5}

    trained, _ = fabric(metrics=[Named()])
    with pytest.raises(EngineError, match="save_best monitors 'val_f1', but an epoch has no such value"):
        trained.train(3, 8, 2, save_best="val_f1")




# --- resume from a checkpoint


def test_a_training_that_a_callback_has_ended_can_be_resumed(result_dir):
    class Stop(Callback):
        def on_validation_end(self, epoch, logs):
            self.model.stop_training = epoch == 0

    assert len(fabric(user_callback=[Stop()])[0].train(4, 4, 2)["loss"]) == 1
    again, _ = fabric(user_callback=[Stop()])
    assert len(again.train(4, 4, 2, resume_from=train_dir(result_dir) / "model_epoch_final.pth")["loss"]) == 4


def train_dir(result_dir):
    return result_dir / "model" / "train"


def test_a_training_can_be_resumed_from_an_earlier_epoch(result_dir):
    whole, expected = fabric()
    history = whole.train(4, 4, 2)
    again, model = fabric()
    assert again.train(4, 4, 2, resume_from=train_dir(result_dir) / "model_epoch_2.pth") == history
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_checkpoint_without_a_training_state_is_resumed(result_dir, capsys):
    first, _ = fabric()
    first.train(3, 4, 2)
    for path in train_dir(result_dir).glob("*.snapshot"):
        path.unlink()
    weights = torch.load(train_dir(result_dir) / "model_epoch_2.pth", weights_only=True)
    seen = []

    class Begun(Callback):
        def on_epoch_begin(self, epoch):
            seen.append((epoch, self.model.state_dict()["0.weight"].clone()))

    again, _ = fabric(user_callback=[Begun()])
    history = again.train(3, 4, 2, resume_from=train_dir(result_dir))
    assert [epoch for epoch, _ in seen] == [2]
    assert torch.equal(seen[0][1], weights["0.weight"])
    assert [math.isnan(loss) for loss in history["loss"]] == [True, True, False]
    assert "weights and optimizer are loaded as of epoch 2" in capsys.readouterr().out


def refused(result_dir, match, name="model_epoch_1.pth", epochs=3, batch=4, **changes):
    again, _ = fabric(**changes)
    with pytest.raises(ValueError, match=match):
        again.train(epochs, batch, 2, resume_from=train_dir(result_dir) / name)


def test_unusable_checkpoints_are_refused(result_dir):
    fabric()[0].train(2, 4, 2)
    refused(result_dir, "has 1 epochs, and epoch_number=1 includes them: use an epoch_number above 1", epochs=1)
    refused(result_dir, "does not exist", "model_epoch_7.pth")
    refused(result_dir, "is not a checkpoint: give a file model_epoch_<k>.pth or its folder", "model.pt")
    refused(result_dir, "use batch_size=4 and effective_batch_size=8", batch=2)
    refused(result_dir, "to another training: it has 1 callbacks, .* the script has 2", user_callback=[Callback()])
    state = train_dir(result_dir) / "model_epoch_1_training_state.snapshot"
    state.write_bytes(state.read_bytes()[:-9])
    refused(result_dir, "training_state.snapshot cannot be read")
    state.unlink()
    (train_dir(result_dir) / "model_epoch_1.pth").write_bytes(b"nothing")
    refused(result_dir, r"model_epoch_1.pth cannot be read")
    (train_dir(result_dir) / "model_epoch_final_training_state.snapshot").unlink()
    refused(result_dir, "so the number of epochs of model_epoch_final.pth is unknown", "model_epoch_final.pth")


def test_a_checkpoint_of_another_model_is_refused(result_dir):
    other = torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
    fabric()[0].train(1, 4, 2)
    again = FabricModel(other, datasets, torch.nn.functional.cross_entropy, torch.optim.SGD(other.parameters(), lr=0.1))
    with pytest.raises(ValueError, match=r"to another model: it has a parameter of shape \(8, 4\) where .* \(9, 4\)"):
        again.train(2, 4, 2, resume_from=train_dir(result_dir))


def test_a_checkpoint_of_other_data_is_refused(result_dir):
    fabric()[0].train(1, 4, 2)
    model, optimizer = parts()
    again = FabricModel(model, lambda: datasets()[1], torch.nn.functional.cross_entropy, optimizer)
    with pytest.raises(EngineError, match="22 training samples and 3 steps per epoch, but this training has 9"):
        again.train(2, 4, 2, resume_from=train_dir(result_dir))
