"""The source of samples does not change the result: a table instead of tensors, or loader processes instead of none."""

from pathlib import Path

import fabric_data
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from churn import Training
from ordinary import FEATURES, Case, network, plain_data, train
from programs import left
from resident import Resident
from scripts import alone, lay_out


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """The usual samples as Parquet, with two files for training."""
    monkeypatch.setenv("RESULT_DIR", str(tmp_path / "alone"))
    monkeypatch.setenv("FABRIC_DATA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("DLI_RUNNER_FD", raising=False)
    for name, dataset in zip(("train", "test"), plain_data(), strict=True):
        x, y = dataset.tensors
        table = pa.table({**{f"x{i}": x[:, i].numpy() for i in range(FEATURES)}, "y": y.numpy()})
        (tmp_path / name).mkdir()
        for number, part in enumerate((table.slice(0, 7), table.slice(7))):
            pq.write_table(part, tmp_path / name / f"part-{number}.parquet")
    return tmp_path


@pytest.mark.integration
def test_a_table_gives_the_same_bits_on_one_then_three_workers(tables):
    def build(datasets=None):
        model = network()
        return Case(model, torch.optim.SGD(model.parameters(), lr=0.1), datasets=datasets)

    def from_tables():
        columns = [[f"x{i}" for i in range(FEATURES)], "y"]
        return tuple(fabric_data.open(tables / name, columns) for name in ("train", "test"))

    (tables / "now").touch()
    expected = train(build, str(tables / "now"))
    results = []
    training: Training = Resident(tables, 1, lambda: results.append(
        train(lambda: build(from_tables), str(tables / "result" / "hurry"))))
    training.begin()
    try:
        training.wait_for_step(2)
        training.resize(3)
        training.finish()
    finally:
        training.abort()
    assert results == [expected]


@pytest.mark.integration
def test_loader_processes_see_changes_by_callbacks(tmp_path):
    text = (Path(__file__).parent.parent / "programs" / "curriculum_in_loaders.py").read_text()
    found = []
    for processes in ("0", "1", "3"):
        folder = tmp_path / processes
        folder.mkdir()
        ended = alone(folder, lay_out(folder, text.replace("threads=2", f"threads={processes}")))
        assert ended.returncode == 0, ended.stderr
        found.append(left(folder, ended.stdout))
    assert found[0] == found[1] == found[2]
