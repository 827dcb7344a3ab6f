"""The results of a training: the model, files, the unchanged process."""

import os
import threading
import zipfile

import pytest
import torch
from fabric_model import FabricModel
from small import SAMPLES, NewLogger, datasets, fabric, parts
from support import eventually
from torch import nn
from torch.nn import functional as F

pytestmark = pytest.mark.usefixtures("result_dir")


def test_a_step_of_one_batch_equals_ordinary_training():
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
    suffixes = (".pth", "_optimizer_state.pth", "_training_state.snapshot")
    assert names == ["manifest.json", *sorted(f"model_epoch_{k}{s}" for k in ("2", "4", "final") for s in suffixes)]
    saved = torch.load(result_dir / "model" / "train" / "model_epoch_final.pth", weights_only=True)
    assert all(torch.equal(saved[key], value) for key, value in network.state_dict().items())
    optimizer = torch.load(result_dir / "model" / "train" / "model_epoch_final_optimizer_state.pth", weights_only=True)
    assert optimizer["param_groups"][0]["momentum"] == 0.9
    assert len(optimizer["state"]) == 4


def test_a_checkpoint_frequency_of_0_keeps_only_the_final_checkpoint(result_dir):
    fabric(driver_logger=object())[0].train(2, 8, checkpoint_freq=0, validation_freq=0)
    assert len(list((result_dir / "model" / "train").glob("model_epoch_*"))) == 3


def test_a_second_training_continues_from_the_first():
    model, network = fabric(driver_logger=object())
    model.train(1, 8)
    once = [p.detach().clone() for p in network.parameters()]
    model.train(1, 8)
    assert not all(torch.equal(a, b) for a, b in zip(once, network.parameters(), strict=True))


@pytest.mark.parametrize("mode", [True, False])
def test_the_model_keeps_its_mode_and_gets_no_gradients(mode):
    model, network = fabric(driver_logger=object())
    network.train(mode)
    model.train(1, 8, 2)
    assert all(part.training is mode for part in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_settings_of_the_calling_process_are_unchanged():
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


@pytest.mark.integration
def test_onnx_is_written_or_one_line_says_why_not(result_dir, capsys):
    fabric(driver_logger=object(), enable_onnx=True)[0].train(1, 8)
    warned = [line for line in capsys.readouterr().err.splitlines() if "ONNX" in line]
    written = (result_dir / "model" / "trained_model.onnx").exists()
    assert written != bool(warned)
    assert len(warned) <= 1


def test_a_loss_with_parameters_and_a_partly_frozen_model_train():
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
    def descriptors_after_a_training():
        fabric(driver_logger=object())[0].train(1, 8)
        eventually(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("hub")],
                   "threads have ended")
        return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    before = descriptors_after_a_training()
    assert [found for found in (descriptors_after_a_training() for _ in range(3)) if found > before + 1] == []
