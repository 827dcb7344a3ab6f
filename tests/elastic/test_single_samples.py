"""BatchNorm and batches of one sample: an error before training, or no side effects."""

import pytest
import torch
from callbacks import Callback
from fabric_model import FabricModel
from small import NewLogger
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from local_backend.elastic.errors import EngineError

pytestmark = pytest.mark.usefixtures("result_dir")


def samples(count):
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(1))
    return lambda: TensorDataset(inputs, torch.arange(count) % 3)


class Spatial(nn.Module):
    """Normalizes pictures: one picture has many values per channel."""

    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm2d(1), nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.norm(x.view(-1, 1, 2, 2)).flatten(1))


def trained(count, batch, *, model=None, engines=2, effective=None, **options):
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    logger = NewLogger()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fabric = FabricModel(model, samples(count), F.cross_entropy, optimizer, driver_logger=logger, **options)
    fabric.train(2, batch, None if effective else engines, effective_batch_size=effective)
    return model, logger


def by_user(model, data, eva, train_loader, fn_args):
    loss = F.cross_entropy(model(data[0]), data[1])
    loss.backward()
    return 0, loss


@pytest.mark.parametrize(
    ("count", "batch", "options", "words"),
    [
        (17, 4, {}, "last batch of an epoch, which has 1 sample: use drop_last=True, or a batch_size other than 4"),
        (16, 1, {}, "batches of 1 sample: use a larger batch_size"),
        (18, 4, {"effective": 9}, "last batch of a step, which has 1 sample: use an effective_batch_size .* of .*, 4"),
        (17, 4, {"fn_step_train": by_user}, "last batch of an epoch, which has 1 sample: use drop_last=True"),
    ],
)
def test_a_single_sample_is_refused_with_the_option_to_use(count, batch, options, words):
    with pytest.raises(EngineError, match=f"BatchNorm cannot train on .*{words}"):
        trained(count, batch, **options)


def test_a_single_sample_is_refused_before_the_first_step():
    calls = []

    def loss(outputs, labels):
        calls.append(len(labels))
        return F.cross_entropy(outputs, labels)

    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(EngineError, match="drop_last=True"):
        FabricModel(model, samples(17), loss, optimizer, driver_logger=object()).train(1, 4, 2)
    assert calls == []


def test_drop_last_trains_without_the_single_sample():
    _, logger = trained(17, 4, drop_last=True)
    assert len(logger.train) == 8


class Freeze(Callback):
    def on_epoch_begin(self, epoch):
        self.model[1].eval()


def test_models_that_can_train_on_a_single_sample_are_accepted():
    trained(17, 4, user_callback=[Freeze()])
    trained(17, 4, model=Spatial())
    trained(17, 4, model=nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)))


def test_the_check_has_no_side_effects(monkeypatch):
    torch.manual_seed(0)
    first, second = Spatial(), Spatial()
    second.load_state_dict(first.state_dict())
    expected, told = trained(17, 4, model=first)
    monkeypatch.setattr("local_backend.elastic.worker.member.check_single_samples", lambda *_: None)
    model, logger = trained(17, 4, model=second)
    assert logger.train == told.train
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected.state_dict()[name])
