"""Patches by a script in installed modules reach its workers."""

import sys
import types

import cloudpickle
import pytest
import torch.nn.functional as F
from torch import nn

from local_backend.elastic.errors import EngineError
from local_backend.elastic.script import patches, user_code
from local_backend.elastic.script.patches import Patch


def twice(x):
    return 2 * x


@pytest.fixture(autouse=True, params=[False, True], ids=["searched", "compared"])
def remembered(request, monkeypatch):
    """Search all modules, as a script without the nursery, or compare them with what the nursery remembered."""
    monkeypatch.setattr(patches, "_before", {})
    monkeypatch.setattr(user_code, "_libraries", {})
    if request.param:
        patches.remember()
        del user_code._libraries[__name__]


def found(path):
    return [patch for patch in patches.gather() if patch.path == path]


def test_patched_functions_methods_and_classes_are_found_and_applied(monkeypatch):
    class Mine:
        pass

    monkeypatch.setattr(F, "relu", twice)
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: twice(x))
    monkeypatch.setattr(nn.Tanh, "rate", staticmethod(twice), raising=False)
    monkeypatch.setattr(nn, "GELU", Mine)
    paths = ("torch.nn.functional.relu", "torch.nn.modules.activation.ReLU.forward",
             "torch.nn.modules.activation.Tanh.rate", "torch.nn.GELU")
    sent = cloudpickle.loads(cloudpickle.dumps([patch for path in paths for patch in found(path)]))
    assert [patch.path for patch in sent] == list(paths)
    monkeypatch.undo()
    assert F.relu is not twice
    with monkeypatch.context() as kept:
        for place, name in ((F, "relu"), (nn.ReLU, "forward"), (nn, "GELU")):
            kept.setattr(place, name, getattr(place, name))
        kept.setattr(nn.Tanh, "rate", None, raising=False)
        for patch in sent:
            patch.apply()
        assert (F.relu(3), nn.ReLU()(4), nn.Tanh.rate(5), nn.GELU.__name__) == (6, 8, 10, "Mine")
    assert F.relu is not twice and nn.GELU.__name__ == "GELU" and not hasattr(nn.Tanh, "rate")


def test_a_patch_of_a_missing_module_or_class_is_skipped():
    Patch("no.such.module", "", "name", twice).apply()
    Patch("torch.nn", "NoSuchClass", "name", twice).apply()


def test_an_unpicklable_patch_is_refused_except_in_the_standard_library(monkeypatch):
    lock = __import__("threading").Lock()

    def locked(x):
        with lock:
            return x

    monkeypatch.setattr(sys, "excepthook", locked)
    patches.gather()
    monkeypatch.setattr(F, "relu", locked)
    with pytest.raises(EngineError, match=r"torch.nn.functional.relu"):
        patches.gather()


def test_lazy_objects_are_not_inspected(monkeypatch):
    class Lazy:
        def __getattr__(self, name):
            raise ModuleNotFoundError(name)

    module = types.ModuleType("installed_lazily")
    holder = type("Holder", (), {"lazy": Lazy(), "__module__": module.__name__, "__qualname__": "Holder"})
    module.Holder, module.lazy = holder, Lazy()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    patches.gather()


def test_modules_that_come_later_or_again_are_searched(monkeypatch):
    again = types.ModuleType("torch.nn.functional")
    again.relu = twice
    later = types.ModuleType("installed_later")
    later.Kind = type("Kind", (), {"double": twice, "__module__": later.__name__, "__qualname__": "Kind"})
    for module in (again, later):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert found("torch.nn.functional.relu") and found("installed_later.Kind.double")


def test_a_value_that_cannot_be_compared_keeps_no_patch_from_being_found(monkeypatch):
    class Stubborn:
        __hash__ = None

        def __eq__(self, other):
            raise RuntimeError("no comparison")

    for value in (Stubborn(), twice):
        monkeypatch.setattr(F, "relu", value)
        monkeypatch.setattr(F, "gelu", twice)
        assert found("torch.nn.functional.gelu")
