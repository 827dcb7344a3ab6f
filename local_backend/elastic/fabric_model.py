"""FabricModel: what a training script hands its model to. Checks every argument before anything starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from local_backend.elastic import artifacts, captured, driver, notebook
from local_backend.elastic.carried import Carried
from local_backend.elastic.hooks import check_callback, wants_instance
from local_backend.elastic.job import Job
from local_backend.elastic.launcher import RUNNER_FD
from local_backend.elastic.options import MODES, Request
from local_backend.elastic.recipe import Recipe
from local_backend.elastic.whole import accumulates

#: Variables whose values are shown when a script imports FabricModel.
SHOWN = ("DATA_DIR", "RESULT_DIR", "LOG_DIR", "SAVED_MODEL_DIR")
BACKENDS = ("pytorch", "tensorflow", "keras")
#: Default of an argument that has none, so that a misspelled one is named first.
_REQUIRED: Any = object()


class FabricModel:
    """A model that trains on as many workers as the job has; the result does not depend on their number.

    One optimizer step covers `engines_number * batch_size` samples (or `effective_batch_size`), always cut into the
    same batches of `batch_size`.
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
        """`datasets_function()` returns (training set, test set) and runs once in every worker, not here.

        `driver_logger`, `worker_logger` and `enable_onnx` are older names of `driver_logger_callback`,
        `worker_logger_callback` and `save_to_onnx`. `user_callback` is a list of `callbacks.Callback`, run in the
        workers. `scaleup_function(epoch, most)` limits the number of workers in an epoch, counted from 0; `train` calls
        it, here, for all epochs before the first. `keras_custom_objects` has no effect. `options`: those of
        `recipe.Recipe` (docs/fabric-model.md). Raises TypeError, ValueError.
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
        self._recipe = recipe
        self._scaleup = scaleup_function
        self._driver_logger = _hooked(
            "driver_logger", _either("driver_logger_callback", driver_logger_callback, "driver_logger", driver_logger)
        )
        self._job = Job(
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
        """Train, and return the history when the model holds the result: name of a value → that value of each epoch.

        `batch_size` is the number of samples that a worker computes at a time. `engines_number` is the most workers
        and the number of batches per optimizer step (default: as many workers as the job was submitted with);
        alternatively `effective_batch_size` is the number of samples per step. Notebooks may say how many workers by
        `hardware_spec`, which goes before `engines_number`, or by `worker_num` and `worker_device_num`, which go after
        it; memory is what the job was submitted with. `num_dataloader_threads` processes
        load data in each worker; 0 loads in the worker itself. Validation and saving happen after every
        `validation_freq` and `checkpoint_freq` epochs, 0 for never; the final state is always saved.

        `mode` is "exact" (default on CPU: the same bits for every number of workers), "fast" (default on GPU: the same
        within rounding) or "async" (local steps, no promise about the trajectory); it goes before --msd-attr mode=.

        Order of samples and all random numbers follow from `torch.manual_seed` of the script, or its default.
        `options`: those of `recipe.Recipe` (docs/fabric-model.md); they go before those given to FabricModel.
        Raises TypeError and ValueError before anything starts; later what the user's code raised in a worker.
        """
        resources = {name: options.pop(name) for name in notebook.ARGUMENTS & options.keys()}
        recipe = self._recipe.with_options("train()", options)
        for name, value in (("epoch_number", epoch_number), ("batch_size", batch_size)):
            if value is _REQUIRED:
                raise TypeError(f"train() needs {name}: train(epoch_number, batch_size)")
        if engines_number is not None and effective_batch_size is not None:
            raise ValueError(
                "train() takes either engines_number or effective_batch_size, not both: each fixes how many samples "
                "an optimizer step covers"
            )
        _check_together(self._job, recipe)
        captured.check_global_hooks()
        job = self._job
        job.recipe, job.carried, job.hooked = recipe, Carried(), None
        if getattr(job.model, "stop_training", False):
            setattr(job.model, "stop_training", False)  # noqa: B010 - a module takes any attribute; of an earlier call
        job.epochs = _whole("epoch_number", epoch_number, 1)
        job.batch = _whole("batch_size", batch_size, 1)
        job.loader_threads = _whole("num_dataloader_threads", num_dataloader_threads or 0, 0)
        request = Request(
            engines=notebook.workers(engines_number, resources, _whole),
            effective_batch=(
                None if effective_batch_size is None else _whole("effective_batch_size", effective_batch_size, 1)
            ),
            validation_freq=_whole("validation_freq", validation_freq, 0),
            checkpoint_freq=_whole("checkpoint_freq", checkpoint_freq, 0),
            seed=torch.initial_seed(),
            mode=_mode(mode),
            scaleup=self._scaleup,
        )
        driver.train(job, request, self._driver_logger, driver.choose_launcher(job))
        return job.carried.history

    def download(self, out_dir: str | os.PathLike[str] = "/tmp") -> None:
        """Write `<out_dir>/<job id>.zip` with what training left under RESULT_DIR/model. Raises OSError."""
        target = Path(out_dir) / f"{os.environ.get('DLI_EXECID') or 'local'}.zip"
        artifacts.zip_model(target)
        print(f"Save model:  {target}", flush=True)


def announce() -> None:
    """What importing the module shows: paths of the job, the backend in use, and what schedules."""
    captured.begin()
    for name in SHOWN:
        if name in os.environ:
            print(f"<> {name} {os.environ[name]}")
    print(f"Using {backend_name()} backend.")
    print(f"Using {'dlicmd' if RUNNER_FD in os.environ else 'local'} scheduler.", flush=True)


def backend_name() -> str:
    """FABRIC_BACKEND, else a guess from what the script has imported. Raises ValueError when it is no backend."""
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
    """Whether the script imported torch before tensorflow; importing this module imports torch last."""
    names = list(sys.modules)
    return names.index("torch") < names.index("tensorflow")


def _unwrapped(model: Any) -> Any:
    """The model inside DistributedDataParallel or DataParallel: the engine does the part of both."""
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
    if isinstance(optimizer, dict):
        _check_phases(model, loss_function, optimizer)
        return
    if loss_function is not None:
        _check_callable("loss_function", loss_function)
    modules = [model, *([loss_function] if isinstance(loss_function, nn.Module) else [])]
    _check_optimizer("optimizer", optimizer, modules)


def _check_phases(model: nn.Module, losses: Any, optimizers: dict[Any, Any]) -> None:
    """Several optimizers: one function (model, batch) → loss for each, by the same names."""
    if not optimizers or not all(isinstance(name, str) and name for name in optimizers):
        raise TypeError("the names of several optimizers must be texts: {'generator': ..., 'discriminator': ...}")
    if not isinstance(losses, dict) or list(losses) != list(optimizers):
        raise TypeError(
            f"with the optimizers {', '.join(optimizers)}, loss_function must be a dict with the same names in the same"
            " order, each a function (model, batch) that returns the loss of its phase"
        )
    for name, optimizer in optimizers.items():
        _check_callable(f"loss_function[{name!r}]", losses[name])
        _check_optimizer(f"optimizer[{name!r}]", optimizer, [model])


def _check_together(job: Job, recipe: Recipe) -> None:
    """Options that exclude each other. Raises ValueError."""
    if recipe.precision == "fp16" and job.fn_step_train is not None:
        raise ValueError(
            "precision='fp16' needs a loss that the engine scales, and fn_step_train runs backward by itself; use "
            "precision='bf16', or loss_function in place of fn_step_train"
        )
    if job.phases and job.fn_step_train is not None:
        raise ValueError("with several optimizers, loss_function has a function for each; leave fn_step_train out")


def _check_optimizer(name: str, optimizer: Any, modules: list[nn.Module]) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"{name} must be a torch.optim.Optimizer built from the model's parameters, not {_given(optimizer)}; "
            f"{_hint(optimizer)}"
        )
    if isinstance(optimizer, (torch.optim.LBFGS, torch.optim.SparseAdam)):
        raise TypeError(
            f"the optimizer {_kind(optimizer)} is not supported: the engine calls step() once per sum of dense "
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


def _whole(name: str, value: Any, least: int) -> int:
    """A whole number, of numpy too. Raises TypeError or ValueError naming the argument."""
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
        raise ValueError(f"{new} and {old} are the same argument; give one of them")
    return older if value is None else value


def _hooked(name: str, value: Any) -> Any:
    """A logger or callback. Raises TypeError for a class in place of an object of it."""
    if wants_instance(value):
        raise TypeError(f"{name} must be an object, not {_given(value)}; {_hint(value)}")
    return value


def _callback(value: Any) -> Any:
    """An item of user_callback. Raises TypeError for a class, and for hooks that do not exist."""
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
    """Functions of (outputs, labels), and objects with update() and compute()."""
    items = _list("metrics", value)
    for item in items:
        if not accumulates(item):
            _check_callable("every item of metrics", item)
    return items


def _kind(value: Any) -> str:
    return type(value).__name__


def _given(value: Any) -> str:
    """What was given instead of what was wanted."""
    if isinstance(value, str):
        return f"the text {value!r}"
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {_kind(value)}"


def _hint(value: Any) -> str:
    """What to do instead."""
    if isinstance(value, type):
        return f"write {value.__name__}(...)"
    return "the engine trains PyTorch models: objects and names of TensorFlow and Keras are not supported"
