"""Changes of the structure of the model by callbacks, which workers that join would not have."""

import pytest
import torch
from fabric_model import FabricModel
from small import datasets, parts
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize, prune

from local_backend.elastic.errors import EngineError

pytestmark = pytest.mark.usefixtures("result_dir")


class Double(nn.Module):
    def forward(self, weight):
        return 2 * weight


def replace_parameter(model):
    model[0].bias = nn.Parameter(torch.zeros(8))


def parametrize_weight(model):
    parametrize.register_parametrization(model[0], "weight", Double())


CHANGES = {
    "added the module model.last": lambda model: model.add_module("last", nn.Identity()),
    "removed the module model.1": lambda model: delattr(model, "1"),
    "replaced the module model.1, a ReLU, by a GELU": lambda model: model.__setitem__(1, nn.GELU()),
    "replaced the parameter model.0.bias": replace_parameter,
    "hook of the module model.0": lambda model: model[0].register_forward_hook(lambda *_: None),
    "parameter model.0.weight": lambda model: prune.l1_unstructured(model[0], "weight", 0.5),
    "replaced the module model.0, a Linear": parametrize_weight,
}


def train(callback, **options):
    model, optimizer = parts()
    FabricModel(model, datasets, F.cross_entropy, optimizer, user_callback=callback, **options).train(2, 8, 2)
    return model


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_end"])
@pytest.mark.parametrize("words", CHANGES)
def test_a_change_by_a_callback_is_refused_with_the_name_of_the_part(words, hook):
    class Change:
        def __getattr__(self, name):
            if name == hook:
                return lambda *_, **__: CHANGES[words](self.model)
            raise AttributeError(name)

    with pytest.raises(EngineError, match=words):
        train(Change())


def test_callbacks_may_change_values_and_prepare_the_model_for_its_use():
    class Change:
        def on_epoch_begin(self, epoch):
            self.model[0].bias.data.zero_()
            self.model[0].requires_grad_(epoch > 0)
            self.model.rate = epoch

        def on_train_end(self):
            self.model.double()

    assert train(Change()).rate == 1


class Rates:
    def on_train_begin(self):
        self.rates = iter(i / 10 for i in range(9))


def test_a_generator_in_a_callback_is_refused_unless_it_is_local():
    with pytest.raises(EngineError, match=r"Rates\.rates is a generator"):
        train(Rates())
    for name in ("rates", "Rates.rates"):
        train(Rates(), local_state=[name])
