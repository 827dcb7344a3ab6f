"""A ready-made kernel for scikit-learn, and for other estimators with its interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from local_backend.inference.kernel.problems import KernelProblem, TaskError
from local_backend.inference.kernel.ready.base import ReadyKernel, ReadyModel, library

if TYPE_CHECKING:
    import numpy as np

_PICKLES = (".joblib", ".pkl", ".pickle")
#: Methods of estimators that an output can name.
_METHODS = ("predict", "predict_proba", "predict_log_proba", "decision_function", "transform")


class SklearnKernel(ReadyKernel):
    """Serves an estimator. Attributes: `method`, `trusted`, `allow_pickle`."""

    def load(self, model: ReadyModel) -> None:
        """Load the estimator. Raises KernelProblem."""
        self._estimator = load_estimator(model, "sklearn")
        self._methods = tuple(one.strip() for one in model.attributes.get("method", "predict").split(","))
        missing = [one for one in self._methods if one not in _METHODS or not hasattr(self._estimator, one)]
        if missing:
            raise KernelProblem(f"The attribute method names {missing[0]!r}, which {type(self._estimator).__name__} "
                                f"does not have. Known: {', '.join(_METHODS)}.")

    def takes(self) -> str:
        """Return how many numbers a sample has, and their names."""
        estimator = getattr(self, "_estimator", None)
        count, names = getattr(estimator, "n_features_in_", None), getattr(estimator, "feature_names_in_", ())
        named = f": {', '.join(map(str, names))}" if len(names) else ""
        return f"It takes {count} values for each sample{named}." if isinstance(count, int) else super().takes()

    def predict(self, inputs: dict[str, np.ndarray], wanted: tuple[str, ...]) -> dict[str, Any]:
        """Return what the methods of the estimator return: those that are requested, or those of `method`."""
        samples = self._samples(inputs)
        for name in wanted:
            if name not in _METHODS or not hasattr(self._estimator, name):
                raise TaskError(f"There is no output {name!r}. Outputs: "
                                f"{', '.join(one for one in _METHODS if hasattr(self._estimator, one))}.", 400)
        found = {name: getattr(self._estimator, name)(samples) for name in wanted or self._methods}
        return {name: one.toarray() if hasattr(one, "toarray") else one for name, one in found.items()}

    def _samples(self, inputs: dict[str, np.ndarray]) -> Any:
        """Return one array, or a table if there are several inputs, of which each one is a column. Raises TaskError."""
        if len(inputs) == 1:
            return next(iter(inputs.values()))
        import numpy as np

        names = [str(name) for name in getattr(self._estimator, "feature_names_in_", inputs)]
        missing = [name for name in names if name not in inputs]
        if missing:
            raise TaskError(f"The request lacks the input {missing[0]!r}.", 400)
        columns = {name: inputs[name].reshape(len(inputs[name]), -1)[:, 0] for name in names}
        try:
            import pandas
        except ImportError:
            return np.column_stack(list(columns.values()))
        return pandas.DataFrame(columns)


def load_estimator(model: ReadyModel, kernel: str) -> Any:
    """Return the estimator in the file of a model. Raises KernelProblem."""
    library("sklearn", kernel, "inference-sklearn", "scikit-learn")
    path = model.file(".skops", *_PICKLES)
    if path.suffix in _PICKLES:
        if not model.flag("allow_pickle"):
            raise KernelProblem(f"{path} is a pickle, and a pickle can run any code. To load it, set the attribute "
                                "allow_pickle to true in model.json, or save the model with skops.")
        return library("joblib", kernel, "inference-sklearn").load(path)
    skops = library("skops.io", kernel, "inference-sklearn")
    trusted = [one.strip() for one in model.attributes.get("trusted", "").split(",") if one.strip()]
    unknown = [one for one in skops.get_untrusted_types(file=path) if one not in trusted]
    if unknown:
        raise KernelProblem(f"{path} has the types {', '.join(unknown)}, which skops does not trust. If you do, name "
                            "them in the attribute trusted in model.json, with commas between them.")
    return skops.load(path, trusted=trusted)
