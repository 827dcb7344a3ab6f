"""The files that EMetrics writes, as tools read them."""

import json

import numpy as np
import pytest
import torch
from emetrics import EMetrics


@pytest.fixture
def folders(tmp_path, monkeypatch):
    monkeypatch.setenv("LOG_DIR", str(tmp_path / "log"))
    monkeypatch.setenv("RESULT_DIR", str(tmp_path))
    monkeypatch.delenv("TRAINING_ID", raising=False)
    return tmp_path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_record_is_written_as_one_object(folders):
    with EMetrics.open() as metrics:
        metrics.record(EMetrics.TRAIN_GROUP, 7, {"loss": 0.25, "count": 3, "name": "x"})
        metrics.record(EMetrics.TEST_GROUP, 8, {"accuracy": np.float32(0.5), "loss": torch.tensor(2.0)})
    first, second = lines(folders / "log" / "evaluation-metrics.txt")
    assert first["grouplabel"] == "train"
    assert first["meta"]["training_id"] == ""
    assert first["meta"]["rindex"] == 1
    assert first["meta"]["time"] > 1_600_000_000_000
    assert "subid" not in first["meta"]
    assert first["etimes"]["iteration"] == {"type": 2, "value": "7"}
    assert first["etimes"]["time_stamp"]["value"]
    assert first["values"] == {
        "loss": {"type": 3, "value": "0.25"},
        "count": {"type": 2, "value": "3"},
        "name": {"value": "x"},
    }
    assert second["grouplabel"] == "test"
    assert second["meta"]["rindex"] == 2
    assert second["values"] == {"accuracy": {"type": 3, "value": "0.5"}, "loss": {"type": 3, "value": "2.0"}}
    assert not (folders / "val_dict_list.json").exists()


def test_a_second_open_appends_and_counts_from_one(folders, monkeypatch):
    monkeypatch.setenv("TRAINING_ID", "training-1")
    for _ in range(2):
        metrics = EMetrics.open()
        metrics.record("test", 1, {"loss": 1.0})
        metrics.close()
        metrics.close()
    found = lines(folders / "log" / "evaluation-metrics.txt")
    assert [line["meta"]["rindex"] for line in found] == [1, 1]
    assert found[0]["meta"]["training_id"] == "training-1"


def test_values_with_a_sub_id_are_added_to_the_list(folders):
    with EMetrics.open("3") as metrics:
        metrics.record(EMetrics.TRAIN_GROUP, 1, {"loss": 9.0})
        metrics.record(EMetrics.TEST_GROUP, 1, {"loss": 0.5, "accuracy": 0.25})
        metrics.record(EMetrics.TEST_GROUP, 2, {"loss": 0.25, "accuracy": 0.5})
    assert [line["meta"]["subid"] for line in lines(folders / "log" / "3" / "evaluation-metrics.txt")] == ["3"] * 3
    assert json.loads((folders / "val_dict_list.json").read_text()) == [
        {"steps": 1, "loss": 0.5, "accuracy": 0.25},
        {"steps": 2, "loss": 0.25, "accuracy": 0.5},
    ]


def test_the_log_directory_falls_back_to_the_job_state_directory(folders, monkeypatch):
    monkeypatch.delenv("LOG_DIR")
    monkeypatch.setenv("JOB_STATE_DIR", str(folders / "state"))
    EMetrics.open().close()
    assert (folders / "state" / "logs" / "evaluation-metrics.txt").exists()


@pytest.mark.parametrize("step", [np.int64(4), torch.tensor(4)])
def test_a_step_may_be_a_number_of_another_library(folders, step):
    with EMetrics.open("s") as metrics:
        metrics.record(EMetrics.TEST_GROUP, step, {"loss": np.float64(0.5)})
    (line,) = lines(folders / "log" / "s" / "evaluation-metrics.txt")
    assert line["etimes"]["iteration"] == {"type": 2, "value": "4"}
    assert json.loads((folders / "val_dict_list.json").read_text()) == [{"steps": 4, "loss": 0.5}]


@pytest.mark.parametrize("value", [np.array([1, 2]), torch.tensor([1, 2]), [1, 2], None])
def test_a_value_that_is_not_a_single_number_is_recorded_as_text(folders, value):
    with EMetrics.open("s") as metrics:
        metrics.record(EMetrics.TEST_GROUP, 1, {"confusion": value})
    (line,) = lines(folders / "log" / "s" / "evaluation-metrics.txt")
    assert line["values"] == {"confusion": {"value": str(value)}}
    assert json.loads((folders / "val_dict_list.json").read_text()) == [{"steps": 1, "confusion": str(value)}]
