"""`--exec-verify`: an exec runs again for a few steps, and the report says whether its result is the same."""

from __future__ import annotations

import pytest

SCRIPT = '''
import sys
import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset
from fabric_model import FabricModel


def datasets():
    x = torch.arange(240.0).view(60, 4) / 240
    return TensorDataset(x, torch.arange(60) % 3), TensorDataset(x[:9], torch.arange(9) % 3)


torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
FabricModel(model, datasets, F.cross_entropy, optimizer).train(int(sys.argv[1]), 4, 4)
print("trained on", sys.argv[1])
'''


@pytest.mark.integration
@pytest.mark.usefixtures("warm")
def test_an_exec_is_verified_with_its_code_and_words(user) -> None:
    (user.folder / "model").mkdir()
    (user.folder / "model" / "train.py").write_text(SCRIPT)
    first = user.run("--exec-start", "edtPyTorch", "--numWorker", "2", "--model-dir", "model", "--model-main",
                     "train.py", "--wait", "--", "3")
    assert first.code == 0, first
    done = user.run("--exec-verify", "last", "--steps", "3", "--follow")
    assert done.code == 0, done
    assert "verified: the first 3 steps gave the same bits with 1 and 2 workers" in done.out
    assert "trained on" not in done.out
    assert user.run("--exec-get", "last").json["state"] == "FINISHED"
