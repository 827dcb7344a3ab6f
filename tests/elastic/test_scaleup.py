"""scaleup_function: the script's own limit on workers, epoch by epoch."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ordinary import EPOCHS, train, with_optimizer
from resident import Resident

from local_backend.elastic.driver.options import limits

pytestmark = pytest.mark.integration


@given(st.lists(st.integers(1, 100), min_size=1, max_size=20), st.integers(1, 10))
def test_each_epoch_has_a_limit_up_to_the_maximum_workers_of_the_job(answers, most):
    asked = []

    def function(epoch, max_engine_num):
        asked.append((epoch, max_engine_num))
        return answers[epoch]

    found = limits(function, len(answers), most)
    assert asked == [(epoch, most) for epoch in range(len(answers))]
    assert found == tuple(min(most, answer) for answer in answers)


def test_a_tensor_is_accepted_as_a_limit():
    assert limits(lambda epoch, most: torch.tensor(2), 3, 4) == (2, 2, 2)


@pytest.mark.parametrize("answer", [0, -1, 2.0, "2", None, True, [2]])
def test_an_answer_other_than_a_positive_integer_is_ignored_with_a_warning(capsys, answer):
    assert limits(lambda epoch, most: answer if epoch == 2 else 1, 5, 4) == ()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"WARNING: scaleup_function(2, 4) returned {answer!r}, so the function is ignored. It gets")


@pytest.mark.parametrize("function", [lambda epoch: 1, 3, lambda epoch, most: 1 // 0])
def test_a_function_that_fails_is_ignored_with_a_warning(capsys, function):
    assert limits(function, 5, 4) == ()
    assert capsys.readouterr().err.startswith("WARNING: scaleup_function(0, 4) raised ")


def test_a_job_without_a_function_has_no_limits(capsys):
    assert limits(None, 5, 4) == ()
    assert capsys.readouterr().err == ""


def test_a_job_warms_up_on_one_worker_and_shrinks_again(tmp_path, result_dir):
    def build():
        case = with_optimizer(torch.optim.SGD, lr=0.1)
        case.extras["scaleup_function"] = lambda epoch, most: 1 if epoch < 2 else most if epoch < EPOCHS // 2 else 2
        return case

    hurry = tmp_path / "now"
    hurry.touch()
    expected = train(build, str(hurry))
    epochs, results = [], []

    class Noting(Resident):
        def on_message(self, message):
            if message["op"] == "spawn":
                epochs.append(self.status.get("epoch", 0))
            super().on_message(message)

    training = Noting(tmp_path / "job", 3, lambda: results.append(train(build, str(training.tmp / "result/hurry"))))
    training.begin()
    try:
        training.wait_for_step(1)
        assert training.status["workers"] == len(training.workers) == 1
        training.wait_for_workers(3)
        training.finish()
    finally:
        training.abort()
    assert results == [expected]
    told = [message["workers"] for message in training.messages if message["op"] == "progress" and "workers" in message]
    assert [count for count, _ in itertools.groupby(told)][-2:] == [3, 2]
    # Epochs count from 1 here: the third epoch has not begun when its workers are started.
    assert len(epochs) == 3
    assert max(epochs) <= 2
