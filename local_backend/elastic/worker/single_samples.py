"""A check before training for batches of a single sample, for which BatchNorm cannot compute a variance.

Without this check, training would fail only when it reaches such a batch, for example at the end of an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch.nn.modules.batchnorm import _BatchNorm

from local_backend.elastic.data import seeding
from local_backend.elastic.errors import EngineError
from local_backend.elastic.plan import StepPlan
from local_backend.elastic.script.job import TrainingJob
from local_backend.elastic.state.replica import Replica

#: Beginning of torch's own message.
_TOO_FEW = "Expected more than 1 value per channel"


class SingleSample(EngineError):
    """BatchNorm has refused a batch of one sample."""


@contextmanager
def explained(plan: StepPlan, size: int) -> Iterator[None]:
    """Raise SingleSample, which names the option to use, if BatchNorm refuses a batch of `size` samples."""
    try:
        yield
    except ValueError as error:
        if size != 1 or not str(error).startswith(_TOO_FEW):
            raise
        raise SingleSample(_advice(plan)) from error


def check_single_samples(job: TrainingJob, plan: StepPlan, replica: Replica, compute: Callable[[], object]) -> None:
    """Try a batch of one sample if an epoch has such a batch and the model has BatchNorm. The state does not change.

    `compute` runs the model on one sample. Raises SingleSample when BatchNorm refuses it. Ignores other exceptions,
    because training raises them again.
    """
    if 1 not in plan.batch_sizes() or job.fn_step_train is not None or not _normalizes(job):
        return
    before = replica.copy(replica.capture())
    with seeding.kept():
        try:
            with explained(plan, 1):
                compute()
        except SingleSample:
            raise
        except Exception:
            return
        finally:
            replica.restore(before)


def _normalizes(job: TrainingJob) -> bool:
    """Return whether the model has BatchNorm that computes statistics of batches. Callbacks may have frozen it."""
    parts = [part for module in job.modules for part in module.modules()]
    return any(isinstance(part, _BatchNorm) and part.training for part in parts)


def _advice(plan: StepPlan) -> str:
    """Return a message that says which batch has one sample, and what to do."""
    if plan.batch == 1:
        return "BatchNorm cannot train on batches of 1 sample: use a larger batch_size, or a normalization per sample"
    whole = plan.size_of_step(0) == plan.step_samples
    if whole and plan.size_of_shard(0, plan.active_shards(0) - 1) == 1:
        return (
            f"BatchNorm cannot train on the last batch of a step, which has 1 sample: use an effective_batch_size that "
            f"is a multiple of batch_size, {plan.batch}"
        )
    return (
        "BatchNorm cannot train on the last batch of an epoch, which has 1 sample: use drop_last=True, or a batch_size "
        f"other than {plan.batch}"
    )
