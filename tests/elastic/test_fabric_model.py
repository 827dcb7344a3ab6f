"""Arguments of FabricModel and train(), of every generation of the API."""

import pytest
import torch
from callbacks import Callback
from fabric_model import FabricModel
from pyedt.fabric_model import FabricModel as PyedtFabricModel
from small import NewLogger, OldLogger, datasets, fabric, parts
from torch import nn
from torch.nn import functional as F

pytestmark = pytest.mark.usefixtures("result_dir")


def test_both_names_refer_to_one_class():
    assert FabricModel is PyedtFabricModel


def test_the_constructor_accepts_every_spelling():
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
        user_callback=[Callback()],
        fn_step_train=None,
        fn_test=None,
        scaleup_function=lambda epoch, most: most,
        fn_args=None,
    )


def test_unknown_arguments_are_refused_with_the_right_name():
    with pytest.raises(TypeError, match="'frobnicate'"):
        fabric(frobnicate=1)
    model, _ = fabric(driver_logger=object())
    with pytest.raises(TypeError, match="'gradient_clip_val'; use clip_grad_norm="):
        model.train(1, 8, gradient_clip_val=1.0)
    with pytest.raises(TypeError, match="'epochs'; use epoch_number="):
        model.train(epochs=5, batch_size=8)
    with pytest.raises(TypeError, match="needs batch_size"):
        model.train(5)


SPECIFIED = {"nodes": {"num_nodes": 1, "num_drivers": 1, "mem": {"size": "16g"}, "gpu": {"num_gpu": 2}}}


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({"worker_memory": "16G", "driver_memory": "1G"}, 6),
        ({"worker_num": 2}, 3),
        ({"worker_num": 3, "worker_device_num": 2}, 1),
        ({"worker_num": 3, "worker_device_num": 2, "engines_number": 2}, 3),
        ({"hardware_spec": SPECIFIED, "engines_number": 6, "worker_num": 6}, 3),
        ({"hardware_spec": {"nodes": {"num_nodes": "3", "gpu": {"num_gpu": "2"}}}}, 1),
        ({"hardware_spec": {"nodes": {"num_nodes": 3, "gpu": {"num_gpu": 0}}}}, 2),
        ({"hardware_spec": {"nodes": {"mem": {"size": "16g"}}}, "engines_number": 2}, 3),
        ({"hardware_spec": SPECIFIED, "effective_batch_size": 24}, 1),
    ],
)
def test_hardware_arguments_of_notebooks_set_the_shards_of_a_step(arguments, steps, recwarn):
    """The number of optimizer steps for the 6 batches of 4 shows how many batches a step covers.

    `effective_batch_size` overrides `hardware_spec`, which overrides `engines_number`, which overrides `worker_num`.
    """
    steps_made = []

    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            steps_made.append(1)
            return super().step(closure)

    model, _ = parts()
    optimizer = Counting(model.parameters(), lr=0.1)
    FabricModel(model, datasets, F.cross_entropy, optimizer, driver_logger=object()).train(1, 4, **arguments)
    assert len(steps_made) == steps
    assert not [warning for warning in recwarn if issubclass(warning.category, UserWarning)]


def test_a_hardware_specification_by_name_is_ignored_with_a_warning():
    with pytest.warns(UserWarning, match="ignores hardware_spec: .* by name or id"):
        fabric(driver_logger=object())[0].train(1, 8, 2, hardware_spec={"name": "V100x2"})


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"model": "net"}, TypeError, "model must be a torch.nn.Module, not the string 'net'; .* Keras"),
        ({"model": nn.Linear}, TypeError, r"not the class Linear; write Linear\(...\)"),
        ({"datasets_function": None}, TypeError, "datasets_function must be callable"),
        ({"loss_function": "categorical_crossentropy"}, TypeError, "not the string 'cat.* Keras are not"),
        ({"loss_function": nn.CrossEntropyLoss}, TypeError, r"class CrossEntropyLoss; write CrossEntropyLoss\(...\)"),
        ({"loss_function": 3}, TypeError, "loss_function must be callable, not a int"),
        ({"optimizer": "adam"}, TypeError, "must be a torch.optim.Optimizer .* the string 'adam'; .* Keras"),
        ({"optimizer": torch.optim.Adam}, TypeError, r"not the class Adam; write Adam\(...\)"),
        ({"optimizer": []}, TypeError, "not a list; for several optimizers, give a dict"),
        ({"metrics": ["accuracy"]}, TypeError, "item of metrics must be a function or module, not the string 'acc"),
        ({"driver_logger": OldLogger}, TypeError, r"driver_logger must be an object, not the class OldLogger; write"),
        ({"worker_logger_callback": NewLogger}, TypeError, "worker_logger must be an object, not the class NewLogger"),
        ({"user_callback": [Callback]}, TypeError, "every item of user_callback must be an object, not the class Ca"),
        ({"user_callback": "x"}, TypeError, "user_callback must be a list"),
        ({"fn_test": 3}, TypeError, "fn_test must be callable"),
        ({"driver_logger": 1, "driver_logger_callback": 2}, ValueError, "the same argument"),
        ({"model": nn.LazyLinear(3)}, ValueError, "call it once with an example batch"),
        ({"model": nn.Sequential(torch.jit.script(nn.ReLU()))}, TypeError, "part '0' of the model is compiled by"),
        ({"loss_function": torch.jit.script(nn.MSELoss())}, TypeError, "loss_function is compiled by"),
        ({"loss_function": lambda outputs, labels, weights: outputs}, TypeError,
         r"<lambda>\(outputs, labels, weights\) has .* 'weights'\); .* use fn_step_train"),
        ({"loss_function": nn.CosineEmbeddingLoss()}, TypeError, r"CosineEmbeddingLoss\(input1: .* use fn_step_train"),
    ],
)
def test_wrong_arguments_of_the_constructor_are_refused(changes, error, words):
    model, optimizer = parts()
    values = {"model": model, "datasets_function": datasets, "loss_function": F.cross_entropy, "optimizer": optimizer}
    with pytest.raises(error, match=words):
        FabricModel(**{**values, **changes})


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SparseAdam])
def test_optimizers_that_the_engine_does_not_support_are_refused(kind):
    model, _ = parts()
    with pytest.raises(TypeError, match=f"{kind.__name__} is not"):
        FabricModel(model, datasets, F.cross_entropy, kind(model.parameters()))


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
        ({"mode": "swift"}, ValueError, "mode must be one of exact, fast, async, not 'swift'"),
        ({"mode": 1}, ValueError, "mode must be one of exact, fast, async, not 1"),
        ({"engines_number": 2, "effective_batch_size": 8}, ValueError, "either engines_number or effective_batch"),
        ({"hardware_spec": "V100x2"}, TypeError, "hardware_spec must be a dict"),
        ({"hardware_spec": {"nodes": {"num_nodes": "two"}}}, TypeError, "num_nodes of hardware_spec must be a whole"),
        ({"hardware_spec": {"nodes": {"num_nodes": 2, "gpu": 1}}}, TypeError, "gpu of hardware_spec must be a dict"),
        ({"worker_num": 0}, ValueError, "worker_num must be at least 1"),
    ],
)
def test_wrong_arguments_of_train_are_refused(arguments, error, words, result_dir):
    model, _ = fabric()
    with pytest.raises(error, match=words):
        model.train(**{"epoch_number": 1, "batch_size": 4, **arguments})
    assert not result_dir.exists(), "a training was started"
