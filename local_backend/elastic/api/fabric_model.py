"""FabricModel, the class to which a training script passes its model. It checks arguments before training starts."""

from __future__ import annotations

import inspect
import os
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from local_backend.elastic import RUNNER_FD
from local_backend.elastic.driver import driver
from local_backend.elastic.driver.options import MODES, TrainingRequest
from local_backend.elastic.driver.reporting import say_platform
from local_backend.elastic.plan import derive_seed
from local_backend.elastic.script import captured
from local_backend.elastic.script.hooks import check_callback, wants_instance
from local_backend.elastic.script.job import Carried, TrainingJob
from local_backend.elastic.script.recipe import Recipe
from local_backend.elastic.script.whole import accumulates
from local_backend.elastic.state import artifacts

#: Keyword arguments of train() that notebooks pass. Memory arguments have no effect: the submitted job sets the memory.
ARGUMENTS = frozenset({"worker_memory", "driver_memory", "worker_num", "worker_device_num", "hardware_spec"})


def workers(engines: Any, given: Mapping[str, Any], whole: Callable[[str, Any, int], int]) -> int | None:
    """Return the largest number of workers, one per device; None if no argument gives it.

    `hardware_spec` comes first, then `engines` (the engines_number), then `worker_num` and `worker_device_num`.
    `whole(name, value, least)` checks a number. Raises TypeError and ValueError naming the argument.
    """
    specified = _specified(given.get("hardware_spec"), whole)
    if specified is not None:
        return specified
    if engines is not None:
        return whole("engines_number", engines, 1)
    if given.get("worker_num") is None:
        return None
    devices = given.get("worker_device_num")
    return whole("worker_num", given["worker_num"], 1) * _devices("worker_device_num", devices, whole)


def _specified(spec: Any, whole: Callable[[str, Any, int], int]) -> int | None:
    """Return the devices of all nodes of a hardware specification, None if it does not give the number of nodes."""
    if spec is None:
        return None
    if not isinstance(spec, Mapping):
        raise TypeError(f"hardware_spec must be a dict such as {{'nodes': {{'num_nodes': 2}}}}, not {spec!r}")
    nodes = spec.get("nodes")
    if not isinstance(nodes, Mapping):
        warnings.warn(
            "train() ignores hardware_spec: hardware specifications cannot be looked up by name or id; give a dict "
            "with 'nodes', or use engines_number",
            stacklevel=4,
        )
        return None
    if nodes.get("num_nodes") is None:
        return None
    gpu = nodes.get("gpu") or {}
    if not isinstance(gpu, Mapping):
        raise TypeError(f"gpu of hardware_spec must be a dict such as {{'num_gpu': 1}}, not {gpu!r}")
    count = whole("num_nodes of hardware_spec", _number(nodes["num_nodes"]), 1)
    return count * _devices("num_gpu of hardware_spec", _number(gpu.get("num_gpu")), whole)


def _devices(name: str, value: Any, whole: Callable[[str, Any, int], int]) -> int:
    """Return the number of devices of a worker. A worker without devices counts as one."""
    return max(1, 0 if value is None else whole(name, value, 0))


def _number(value: Any) -> Any:
    """Return a number that a specification may give as text."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


#: Variables whose values are printed when a script imports FabricModel.
SHOWN = ("DATA_DIR", "RESULT_DIR", "LOG_DIR", "SAVED_MODEL_DIR")
BACKENDS = ("pytorch", "tensorflow", "keras")
#: Default of a required argument. So a misspelled argument is reported before a missing one.
_REQUIRED: Any = object()


#: Id of a model → (the model, the seed of the script, number of earlier trainings of the model with this seed).
_trainings: dict[int, tuple[weakref.ref[nn.Module], int, int]] = {}


def _count(model: nn.Module) -> int:
    """Return the number of earlier trainings of a model with the present seed of the script."""
    known, seed, trainings = _trainings.get(id(model), (lambda: None, 0, 0))
    return trainings if known() is model and seed == torch.initial_seed() else 0


def _seed(count: int) -> int:
    """Return the seed of a training: that of the script, or for a further training of the model another one, because it
    must not repeat the order of samples and the random numbers."""
    return derive_seed(torch.initial_seed(), 11, count) if count else torch.initial_seed()


class FabricModel:
    """A model that trains on as many workers as the job has; the result does not depend on their number.

    One optimizer step covers `engines_number * batch_size` samples (or `effective_batch_size`). The engine always cuts
    these samples into the same batches of `batch_size`.
    """

    def __init__(  # noqa: PLR0917 - the order of the contract
        self,
        model: nn.Module,
        datasets_function: Callable[[], Any],
        loss_function: Callable[[Any, Any], Any] | dict[str, Callable[..., Any]] | None,
        optimizer: torch.optim.Optimizer | dict[str, torch.optim.Optimizer],
        metrics: list[Callable[[Any, Any], Any]] | None = None,
        worker_logger_callback: Any = None,
        driver_logger_callback: Any = None,
        save_to_onnx: bool = False,
        keras_custom_objects: dict[str, Any] | None = None,
        fn_batch_collate: Callable[[list[Any]], Any] | None = None,
        *,
        driver_logger: Any = None,
        worker_logger: Any = None,
        user_callback: Any = None,
        enable_onnx: bool = False,
        fn_step_train: Callable[..., Any] | None = None,
        fn_test: Callable[..., Any] | None = None,
        scaleup_function: Callable[[int, int], int] | None = None,
        fn_args: Any = None,
        **options: Any,
    ) -> None:
        """Check the arguments. Training begins with `train`.

        Args:
            model: the model. DistributedDataParallel and DataParallel around it are removed.
            datasets_function: returns (training set, test set). It runs once in every worker, not in the constructor.
            loss_function: (outputs, labels) → loss; None for a model whose outputs contain the loss. With several
                optimizers a dict of functions (model, batch) → loss, under the names of the optimizers.
            optimizer: the optimizer of the model's parameters, or a dict by the names of the phases of a step.
            metrics: functions (outputs, labels) → number, or objects with update() and compute().
            worker_logger_callback: replaces the built-in logger of the workers, see `callbacks.LoggerCallback`.
            driver_logger_callback: replaces the built-in logger of the driver.
            save_to_onnx: whether to write the model to RESULT_DIR/model in the ONNX format, too.
            keras_custom_objects: has no effect.
            fn_batch_collate: list of samples → batch, instead of PyTorch's default.
            driver_logger: older name of `driver_logger_callback`.
            worker_logger: older name of `worker_logger_callback`.
            user_callback: a `callbacks.Callback` or a list of them. They run in the workers.
            enable_onnx: older name of `save_to_onnx`.
            fn_step_train: (model, data, eva, train_loader, fn_args) → (accuracy, loss) of a batch.
            fn_test: (model, test_iter, fn_args) → mean loss over the batches of `test_iter`.
            scaleup_function: (epoch, most) → largest number of workers in this epoch; epochs count from 0. `train`
                calls it in this process for all epochs, before the first epoch.
            fn_args: passed to `fn_step_train` and `fn_test`.
            options: the options in docs/fabric-model.md.

        Raises:
            TypeError: an argument is missing, unknown or of another type.
            ValueError: the value of an argument cannot be used.
        """
        recipe = Recipe().with_options("FabricModel", options)
        model = _unwrapped(model)
        _check_core(model, datasets_function, loss_function, optimizer)
        phases = optimizer if isinstance(optimizer, dict) else {}
        first = next(iter(optimizer.values())) if isinstance(optimizer, dict) else optimizer
        for name, function in (
            ("fn_batch_collate", fn_batch_collate),
            ("fn_step_train", fn_step_train),
            ("fn_test", fn_test),
        ):
            if function is not None:
                _check_callable(name, function)
        if fn_step_train is None and not phases:
            _check_loss_arguments(loss_function)
        self._recipe = recipe
        self._scaleup = scaleup_function
        self._driver_logger = _hooked(
            "driver_logger", _either("driver_logger_callback", driver_logger_callback, "driver_logger", driver_logger)
        )
        self._job = TrainingJob(
            model=model,
            datasets_function=datasets_function,
            loss_function=loss_function,
            optimizer=first,
            phases=phases,
            recipe=recipe,
            epochs=1,
            batch=1,
            metrics=_metrics(metrics),
            worker_logger=_hooked(
                "worker_logger",
                _either("worker_logger_callback", worker_logger_callback, "worker_logger", worker_logger),
            ),
            callbacks=[_callback(item) for item in _list("user_callback", user_callback)],
            save_to_onnx=bool(save_to_onnx or enable_onnx),
            fn_batch_collate=fn_batch_collate,
            fn_step_train=fn_step_train,
            fn_test=fn_test,
            fn_args=fn_args,
        )

    def train(  # noqa: PLR0917 - the order of the contract
        self,
        epoch_number: int = _REQUIRED,
        batch_size: int = _REQUIRED,
        engines_number: int | None = None,
        num_dataloader_threads: int | None = 0,
        validation_freq: int = 1,
        checkpoint_freq: int = 1,
        effective_batch_size: int | None = None,
        *,
        mode: str | None = None,
        **options: Any,
    ) -> dict[str, list[float]]:
        """Train the model. The model then holds the result.

        The seed that the script sets by `torch.manual_seed`, or its default, determines the order of samples and all
        random numbers. The job keeps the memory that it was submitted with.

        Args:
            epoch_number: epochs to train.
            batch_size: samples that a worker computes at a time.
            engines_number: maximum number of workers, and batches per optimizer step. Its default is the number of
                workers that the job was submitted with.
            num_dataloader_threads: processes that load data in each worker; with 0 the worker itself loads data.
            validation_freq: epochs between two validations; 0 means never.
            checkpoint_freq: epochs between two checkpoints; 0 means never. The final state is always saved.
            effective_batch_size: samples per optimizer step, instead of `engines_number`.
            mode: "exact" (default on CPU: the same bits for every number of workers), "fast" (default on GPU: the same
                within rounding) or "async" (local steps, no promise about the trajectory). It overrides
                --msd-attr mode=.
            options: the options in docs/fabric-model.md. They take precedence over the options of the constructor.
                Notebooks may give the number of workers by `hardware_spec`, which takes precedence over
                `engines_number`, or by `worker_num` and `worker_device_num`, over which it takes precedence.

        Returns:
            The history: name of a value → value in each epoch.

        Raises:
            TypeError: an argument is missing, unknown or of another type. Raised before training starts.
            ValueError: the value of an argument cannot be used. Raised before training starts.
            Exception: an exception of the user's code in a worker, as the worker raised it.
        """
        resources = {name: options.pop(name) for name in ARGUMENTS & options.keys()}
        recipe = self._recipe.with_options("train()", options)
        for name, value in (("epoch_number", epoch_number), ("batch_size", batch_size)):
            if value is _REQUIRED:
                raise TypeError(f"train() needs {name}: train(epoch_number, batch_size)")
        if engines_number is not None and effective_batch_size is not None:
            raise ValueError(
                "train() takes either engines_number or effective_batch_size, not both: each sets the number of "
                "samples per optimizer step"
            )
        _check_together(self._job, recipe)
        captured.check_global_hooks()
        job = self._job
        job.recipe, job.carried, job.hooked, job.late = recipe, Carried(), None, []
        if getattr(job.model, "stop_training", False):
            setattr(job.model, "stop_training", False)  # noqa: B010 - a module takes any attribute; of an earlier call
        job.epochs = _whole("epoch_number", epoch_number, 1)
        job.batch = _whole("batch_size", batch_size, 1)
        job.loader_threads = _whole("num_dataloader_threads", num_dataloader_threads or 0, 0)
        count = _count(job.model)
        request = TrainingRequest(
            engines=workers(engines_number, resources, _whole),
            effective_batch=(
                None if effective_batch_size is None else _whole("effective_batch_size", effective_batch_size, 1)
            ),
            validation_freq=_whole("validation_freq", validation_freq, 0),
            checkpoint_freq=_whole("checkpoint_freq", checkpoint_freq, 0),
            seed=_seed(count),
            mode=_mode(mode),
            scaleup=self._scaleup,
            count=count,
        )
        _trainings[id(job.model)] = weakref.ref(job.model), torch.initial_seed(), count + 1
        known = driver.train(job, request, self._driver_logger, driver.choose_launcher(job))
        _trainings[id(job.model)] = weakref.ref(job.model), torch.initial_seed(), known + 1
        return job.carried.history

    def download(self, out_dir: str | os.PathLike[str] = "/tmp") -> None:
        """Write `<out_dir>/<job id>.zip` with the files that training left under RESULT_DIR/model.

        Args:
            out_dir: the folder of the zip.

        Raises:
            OSError: the zip cannot be written.
        """
        target = Path(out_dir) / f"{os.environ.get('DLI_EXECID') or 'local'}.zip"
        artifacts.zip_model(target)
        print(f"Save model:  {target}", flush=True)


def announce() -> None:
    """Start `captured`; print the job's paths, the backend and the scheduler. Called when a script imports
    FabricModel."""
    captured.begin()
    for name in SHOWN:
        if name in os.environ:
            say_platform(f"<> {name} {os.environ[name]}")
    say_platform(f"Using {backend_name()} backend.")
    say_platform(f"Using {'dlicmd' if RUNNER_FD in os.environ else 'local'} scheduler.")


def backend_name() -> str:
    """Return FABRIC_BACKEND, or a guess from the modules that the script has imported. Raises ValueError when
    FABRIC_BACKEND names no backend."""
    named = os.environ.get("FABRIC_BACKEND")
    if named:
        if named not in BACKENDS:
            raise ValueError(f"FABRIC_BACKEND must be {', '.join(BACKENDS)}, not '{named}'")
        return named
    guess = "keras" if "tensorflow" in sys.modules and not _torch_was_first() else "pytorch"
    print(
        f"WARNING: FABRIC_BACKEND is not set; guessed {guess} from the modules imported so far. "
        f"Set FABRIC_BACKEND to one of {', '.join(BACKENDS)} to force it.",
        file=sys.stderr,
        flush=True,
    )
    return guess


def _torch_was_first() -> bool:
    """Return whether the script imported torch before tensorflow. If only this module imported torch, torch is last."""
    names = list(sys.modules)
    return names.index("torch") < names.index("tensorflow")


def _unwrapped(model: Any) -> Any:
    """Return the model inside DistributedDataParallel or DataParallel, because the engine replaces both."""
    parallel = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    return model.module if isinstance(model, parallel) else model


def _check_core(model: Any, datasets_function: Any, loss_function: Any, optimizer: Any) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, not {_given(model)}; {_hint(model)}")
    _check_callable("datasets_function", datasets_function)
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise ValueError(
            "the model has lazy parameters without a shape yet: call it once with an example batch, and build the "
            "optimizer after that"
        )
    _check_uncompiled("the model", model)
    if isinstance(optimizer, dict):
        _check_phases(model, loss_function, optimizer)
        return
    if loss_function is not None:
        _check_callable("loss_function", loss_function)
        _check_uncompiled("loss_function", loss_function)
    modules = [model, *([loss_function] if isinstance(loss_function, nn.Module) else [])]
    _check_optimizer("optimizer", optimizer, modules)


def _check_uncompiled(what: str, value: Any) -> None:
    """Raise TypeError if torch.jit has compiled a part of the model or the loss."""
    for name, part in value.named_modules() if isinstance(value, nn.Module) else ():
        if isinstance(part, torch.jit.ScriptModule):
            raise TypeError(
                f"{f'the part {name!r} of {what}' if name else what} is compiled by torch.jit, so its state cannot "
                "travel: give FabricModel the module as it was before torch.jit, and compile it after train()"
            )


def _check_phases(model: nn.Module, losses: Any, optimizers: dict[Any, Any]) -> None:
    """Check that several optimizers have a loss function (model, batch) → loss each, under the same names. Raises
    TypeError and ValueError."""
    if not optimizers or not all(isinstance(name, str) and name for name in optimizers):
        raise TypeError("the names of several optimizers must be strings: {'generator': ..., 'discriminator': ...}")
    if not isinstance(losses, dict) or list(losses) != list(optimizers):
        raise TypeError(
            f"with the optimizers {', '.join(optimizers)}, loss_function must be a dict with the same names in the "
            "same order; each value is a function (model, batch) that returns the loss of that phase"
        )
    for name, optimizer in optimizers.items():
        _check_callable(f"loss_function[{name!r}]", losses[name])
        _check_optimizer(f"optimizer[{name!r}]", optimizer, [model])


def _check_together(job: TrainingJob, recipe: Recipe) -> None:
    """Raise ValueError for options that exclude each other."""
    if recipe.precision == "fp16" and job.fn_step_train is not None:
        raise ValueError(
            "precision='fp16' does not support fn_step_train: the engine must scale the loss, but fn_step_train calls "
            "backward() itself; use precision='bf16', or loss_function instead of fn_step_train"
        )
    if job.phases and job.fn_step_train is not None:
        raise ValueError(
            "with several optimizers, loss_function is a dict with a function for each optimizer; remove fn_step_train"
        )


def _check_optimizer(name: str, optimizer: Any, modules: list[nn.Module]) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        several = "for several optimizers, give a dict of them, and a dict of loss functions with the same names"
        raise TypeError(
            f"{name} must be a torch.optim.Optimizer built from the model's parameters, not {_given(optimizer)}; "
            f"{several if isinstance(optimizer, (list, tuple)) else _hint(optimizer)}"
        )
    if isinstance(optimizer, (torch.optim.LBFGS, torch.optim.SparseAdam)):
        raise TypeError(
            f"the optimizer {_kind(optimizer)} is not supported: the engine calls step() once for each sum of dense "
            "gradients; use SGD, Adam or another optimizer whose step() needs no closure and no sparse gradients"
        )
    own = {id(parameter) for module in modules for parameter in module.parameters()}
    if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        raise ValueError(f"the {name} holds no parameter of the model: build it from model.parameters()")


def _check_callable(name: str, value: Any) -> None:
    if isinstance(value, str):
        raise TypeError(f"{name} must be a function or module, not {_given(value)}; {_hint(value)}")
    if isinstance(value, type) and issubclass(value, nn.Module):
        raise TypeError(f"{name} must be an object, not {_given(value)}; {_hint(value)}")
    if not callable(value):
        raise TypeError(f"{name} must be callable, not {_given(value)}")


def _check_loss_arguments(loss: Any) -> None:
    """Raise TypeError if a loss function cannot be called with outputs and labels."""
    try:
        signature = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss)
    except (TypeError, ValueError):
        return  # a function without a readable signature; or there is no loss function
    try:
        signature.bind("outputs", "labels")
    except TypeError as error:
        name = getattr(loss, "__name__", type(loss).__name__)
        raise TypeError(
            f"FabricModel calls loss_function(outputs, labels), but {name}{signature} has other arguments ({error}); "
            "if the loss needs more items of the batch, such as weights of samples, use fn_step_train"
        ) from None


def _whole(name: str, value: Any, least: int) -> int:
    """Return a whole number, also one of numpy, as an int. Raises TypeError or ValueError with the argument's name."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    number = int(value.__index__())
    if number < least:
        raise ValueError(f"{name} must be at least {least}, not {number}")
    return number


def _mode(value: Any) -> str | None:
    if value is not None and value not in MODES:
        raise ValueError(f"mode must be one of {', '.join(MODES)}, not {value!r}")
    return value


def _either(new: str, value: Any, old: str, older: Any) -> Any:
    if value is not None and older is not None and value is not older:
        raise ValueError(f"{new} and {old} are the same argument; give only one of them")
    return older if value is None else value


def _hooked(name: str, value: Any) -> Any:
    """Return a logger or callback. Raises TypeError for a class in place of an object of the class."""
    if wants_instance(value):
        raise TypeError(f"{name} must be an object, not {_given(value)}; {_hint(value)}")
    return value


def _callback(value: Any) -> Any:
    """Return an item of user_callback. Raises TypeError for a class, and for hooks that do not exist."""
    _hooked("every item of user_callback", value)
    check_callback(value)
    return value


def _list(name: str, value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, (str, bytes, dict)):
        raise TypeError(f"{name} must be a list, not {_given(value)}")
    return [value]


def _metrics(value: Any) -> list[Any]:
    """Return the metrics as a list: functions of (outputs, labels), and objects with update() and compute()."""
    items = _list("metrics", value)
    for item in items:
        if not accumulates(item):
            _check_callable("every item of metrics", item)
    return items


def _kind(value: Any) -> str:
    return type(value).__name__


def _given(value: Any) -> str:
    """Return the words that describe a wrong value in a message."""
    if isinstance(value, str):
        return f"the string {value!r}"
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {_kind(value)}"


def _hint(value: Any) -> str:
    """Return the words that say how to replace a wrong value."""
    if isinstance(value, type):
        return f"write {value.__name__}(...)"
    return "the engine trains PyTorch models: objects and names of TensorFlow and Keras are not supported"
