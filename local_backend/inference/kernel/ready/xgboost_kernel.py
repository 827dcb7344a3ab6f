"""A ready-made kernel for XGBoost: a booster in its own format, or an estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from local_backend.inference.kernel.problems import TaskError
from local_backend.inference.kernel.ready.base import ReadyModel, library
from local_backend.inference.kernel.ready.sklearn_kernel import SklearnKernel

if TYPE_CHECKING:
    import numpy as np

_SUFFIXES = (".ubj", ".json", ".model")
_ESTIMATORS = (".skops", ".joblib", ".pkl")


class XgboostKernel(SklearnKernel):
    """Serves a model of XGBoost. Its output is `predict`."""

    def load(self, model: ReadyModel) -> None:
        """Load the booster, or the estimator. Raises KernelProblem."""
        xgboost = library("xgboost", "xgboost", "inference-xgboost")
        path = model.file(*_SUFFIXES, *_ESTIMATORS)
        self._booster: Any = None
        if path.suffix in _ESTIMATORS:
            super().load(model)
        else:
            self._booster = xgboost.Booster(model_file=str(path))
            self._matrix = xgboost.DMatrix

    def predict(self, inputs: dict[str, np.ndarray], wanted: tuple[str, ...]) -> dict[str, Any]:
        """Return the predictions. Raises TaskError for another output."""
        if self._booster is None:
            return super().predict(inputs, wanted)
        if any(name != "predict" for name in wanted):
            raise TaskError("The output of this model is `predict`.", 400)
        import numpy as np

        names = self._booster.feature_names
        columns = [inputs[name] for name in names] if names and set(names) == set(inputs) else list(inputs.values())
        samples = columns[0] if len(columns) == 1 else np.column_stack(columns)
        if samples.ndim != 2 or samples.dtype == object:
            raise TaskError("The model takes rows of numbers.", 400)
        if samples.shape[1] != self._booster.num_features():
            raise TaskError(f"The model takes {self._booster.num_features()} numbers per row, not {samples.shape[1]}.",
                            400)
        return {"predict": self._booster.predict(self._matrix(samples, feature_names=names))}
