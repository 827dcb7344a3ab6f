"""Data sets for training programs: the samples equal the content of the files, in every process."""

import datetime
import decimal
import itertools
import json
import multiprocessing
import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path

import fabric_data
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fabric_data import DataProblem
from fabric_files import plain, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from local_backend.data.kinds.documents import REST

TYPES = {
    "i8": pa.int8(), "i64": pa.int64(), "u16": pa.uint16(), "u32": pa.uint32(), "flag": pa.bool_(),
    "f32": pa.float32(), "f64": pa.float64(), "text": pa.string(), "raw": pa.large_binary(),
    "list": pa.list_(pa.int32()), "reals": pa.list_(pa.float64()), "pair": pa.list_(pa.float32(), 2),
}
_RANGES = {"i8": (-128, 127), "i64": (-2**63, 2**63 - 1), "u16": (0, 2**16 - 1), "u32": (0, 2**32 - 1)}
_REALS = st.floats(width=32, allow_nan=False)
_ROW = st.fixed_dictionaries({
    **{name: st.integers(*bounds) for name, bounds in _RANGES.items()},
    "flag": st.booleans(), "f32": _REALS, "f64": _REALS, "text": st.text(st.characters(codec="utf-8"), max_size=5),
    "raw": st.binary(max_size=5), "list": st.lists(st.integers(-9, 9), max_size=4),
    "reals": st.lists(_REALS, max_size=3), "pair": st.lists(_REALS, min_size=2, max_size=2),
})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(_ROW, max_size=12), cuts=st.lists(st.integers(0, 12), max_size=3))
def test_samples_equal_the_rows(tmp_path_factory, rows, cuts):
    """For any values, types and distribution over files."""
    folder = tmp_path_factory.mktemp("rows")
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    schema = pa.schema(list(TYPES.items()))
    for number, (start, end) in enumerate(itertools.pairwise(bounds)):
        pq.write_table(pa.Table.from_pylist(rows[start:end], schema), folder / f"part-{number}.parquet",
                       row_group_size=3)
    dataset = fabric_data.open(folder)
    assert len(dataset) == len(rows)
    found = [{name: plain(value) for name, value in dataset[i].items()} for i in range(len(dataset))]
    assert found == rows
    pairs = fabric_data.open(folder, columns=[["f64", "i8"], "text"])
    assert [(plain(pairs[i][0]), pairs[i][1]) for i in range(len(rows))] == [
        ([row["f64"], float(row["i8"])], row["text"]) for row in rows]


def test_database_types_are_converted_to_numbers_and_strings(data):
    when = datetime.datetime(2024, 2, 29, 12, 30, 1, 500, tzinfo=datetime.timezone.utc)
    write(data / "a.parquet", price=pa.array([decimal.Decimal("1.25"), None], pa.decimal128(10, 2)),
          at=pa.array([when, when], pa.timestamp("us", "UTC")), day=pa.array([when.date()] * 2, pa.date32()),
          word=pa.array(["x", "y"]).dictionary_encode())
    dataset = fabric_data.open(data)
    assert dataset[0] == {"price": 1.25, "word": "x", "at": 1_709_209_801_000_500, "day": 19_782}
    assert np.isnan(dataset[1]["price"]) and dataset[1]["word"] == "y"


def test_selected_columns_form_a_tuple_for_training(data):
    write(data / "a.parquet", x=[0.5, 1.5, 2.5], y=[1.0, 2.0, 3.0], label=[0, 1, 0])
    dataset = fabric_data.open(data, columns=[["x", "y"], "label"], dtype=torch.float32,
                               transform=lambda item: (item[0] * 2, item[1]))
    inputs, labels = next(iter(DataLoader(dataset, batch_size=3)))
    assert torch.equal(inputs, torch.tensor([[1.0, 2], [3, 4], [5, 6]])) and labels.tolist() == [0, 1, 0]


def test_a_list_of_one_column_is_a_tensor(data, cache):
    write(data / "a.parquet", x=[0.0, 1.0], label=[0, 1], v=pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)))
    assert fabric_data.open(data, ["x", "label"])[1] == (1.0, 1)
    x, label, vector = fabric_data.open(data, [["x"], ["label"], ["v"]], dtype=torch.float32)[1]
    assert (x.tolist(), x.dtype, label.tolist(), label.dtype) == ([1.0], torch.float32, [1], torch.int64)
    assert vector.tolist() == [3, 4], "a list column is already a tensor"
    batch, _ = next(iter(DataLoader(fabric_data.open(data, [["x"], "label"]), batch_size=2)))
    assert batch.shape == (2, 1)


@pytest.mark.parametrize("dtype", ["float32", "f4", np.float32, np.dtype("float32"), np.dtype(">f4"), torch.float32])
def test_a_dtype_may_be_given_in_any_form(data, dtype):
    write(data / "a.parquet", x=[0.1])
    np.save(data / "y.npy", np.array([0.1]))
    for name in ("a.parquet", "y.npy"):
        found = fabric_data.open(data / name, ["x" if name == "a.parquet" else "y"], dtype=dtype)[0][0]
        assert found.dtype == np.float32 and found == np.float32(0.1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, "int8", "float31", "f4,(", np.int64, 3, [], object])
def test_an_unsupported_dtype_is_rejected(data, dtype):
    write(data / "a.parquet", x=[0.1])
    with pytest.raises(DataProblem, match=r"choose torch.float16, torch.float32 or torch.float64"):
        fabric_data.open(data, dtype=dtype)


def test_the_rest_column_of_documents_is_left_out_by_default(data):
    write(data / "a.parquet", _id=["a", "b"], n=[1, 2], **{REST: pa.array([None, '{"m": 3}'])})
    assert fabric_data.open(data)[1] == {"_id": "b", "n": 2}
    assert fabric_data.open(data, fill={REST: "{}"})[0] == {"_id": "a", "n": 1, REST: "{}"}
    assert fabric_data.open(data, ["n", REST], fill={REST: ""})[1] == (2, '{"m": 3}')
    with pytest.raises(DataProblem, match=r"column _rest: it has missing values"):
        fabric_data.open(data, [REST])


def test_batches_have_the_expected_types(data):
    write(data / "a.parquet", a=pa.array([1], pa.int16()), b=pa.array([1], pa.float32()), c=[True], d=[0.5])
    batch = next(iter(DataLoader(fabric_data.open(data))))
    assert {name: value.dtype for name, value in batch.items()} == {
        "a": torch.int64, "b": torch.float32, "c": torch.bool, "d": torch.float64}
    assert next(iter(DataLoader(fabric_data.open(data, ["d"], dtype=torch.float32))))[0].dtype == torch.float32


def test_a_change_of_a_sample_does_not_change_the_data(data):
    write(data / "a.parquet", x=[[1.0, 2.0]])
    np.save(data / "x.npy", np.ones((1, 2)))
    for place in (data / "a.parquet", data / "x.npy"):
        dataset = fabric_data.open(place)
        sample = dataset[0]["x"] if isinstance(dataset[0], dict) else dataset[0]
        before = sample.clone()
        sample.mul_(7)
        again = dataset[0]["x"] if isinstance(dataset[0], dict) else dataset[0]
        assert torch.equal(again, before)


@pytest.mark.parametrize(("columns", "told"), [
    (["z"], "no column 'z'.*the columns are n, s, l"), ([["n", "s"]], "n and s: a tensor"),
    ([[]], "a group of columns is empty"),
    (["m"], "no column 'm'"), ([["s"]], "column s: a tensor cannot hold string; name the column outside"),
    ([["n", "l"]], "a list column cannot be joined with other columns"), ([], "'columns' is empty"),
    ("label", r"'label' is one name, not a list of names; write \['label'\]"), ([3], "3 is neither a name nor a list"),
    ([["n", 3]], "3 is not a column name"),
])
def test_invalid_columns_are_rejected_with_the_reason(data, columns, told):
    write(data / "a.parquet", n=[1], s=["a"], l=[[1]])
    with pytest.raises(DataProblem, match=told):
        fabric_data.open(data, columns)


def test_invalid_data_is_rejected_with_the_reason(data, tmp_path):
    with pytest.raises(DataProblem, match="DATA_DIR is not set"):
        fabric_data.open()
    with pytest.raises(DataProblem, match="/none does not exist"):
        fabric_data.open("/none")
    with pytest.raises(DataProblem, match=r"contains no known data; fabric_data reads"):
        fabric_data.open(data)
    write(data / "a.parquet", n=[1])
    write(data / "b.parquet", m=[1])
    with pytest.raises(DataProblem, match=r"the columns of .*b.parquet differ from"):
        fabric_data.open(data)
    (data / "b.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataProblem, match=r"b.parquet is not a Parquet file"):
        fabric_data.open(data)
    write(tmp_path / "s.parquet", s=[{"a": 1}])
    with pytest.raises(DataProblem, match="column s: a sample cannot hold struct"):
        fabric_data.open(tmp_path / "s.parquet")
    write(tmp_path / "u.parquet", u=pa.array([2**64 - 1], pa.uint64()))
    with pytest.raises(DataProblem, match="18446744073709551615 is too large for"):
        fabric_data.open(tmp_path / "u.parquet")


def test_integers_too_large_for_a_tensor_are_rejected(tmp_path):
    (tmp_path / "one").mkdir()
    np.save(tmp_path / "one" / "x.npy", np.array([[1, 2], [2**64 - 1, 3]], np.uint64))
    samples = fabric_data.open(tmp_path / "one")
    samples[0]
    with pytest.raises(DataProblem, match="18446744073709551615 is too large for"):
        samples[1]


def test_a_damaged_file_leaves_no_cache_entry(data, cache):
    path = write(data / "a.parquet", n=list(range(50_000)))
    whole = bytearray(path.read_bytes())
    whole[100:20_000] = os.urandom(19_900)
    path.write_bytes(whole)
    with pytest.raises(DataProblem, match=r"a.parquet is damaged"):
        fabric_data.open(path)
    assert not [found for found in cache.iterdir() if found.is_dir()]


def test_the_cache_serves_later_runs_until_the_file_changes(data, cache):
    path = write(data / "a.parquet", n=[1, 2, 3])
    assert fabric_data.open(data)[1]["n"] == 2
    (entry,) = [found for found in cache.iterdir() if found.is_dir()]
    inode = (entry / "0.npy").stat().st_ino
    assert fabric_data.open(data)[2]["n"] == 3 and (entry / "0.npy").stat().st_ino == inode
    write(path, n=[7, 8])
    assert [int(fabric_data.open(data)[i]["n"]) for i in range(2)] == [7, 8]


def test_the_size_of_the_cache_is_bounded(data, cache, monkeypatch):
    paths = [write(data / f"{number}.parquet", n=[number] * 1000) for number in range(4)]
    opened = [fabric_data.open(path) for path in paths[:3]]
    entries = {found for found in cache.iterdir() if found.is_dir()}
    for at, entry in enumerate(sorted(entries)):
        os.utime(entry / "done", (at, at))
    monkeypatch.setenv("FABRIC_DATA_CACHE_BYTES", "17000")
    newest = fabric_data.open(paths[3])
    left = {found for found in cache.iterdir() if found.is_dir()}
    assert len(left) == 2 and sorted(entries)[2] in left, "expected the last used entry and the new entry"
    assert [int(dataset[999]["n"]) for dataset in (*opened, newest)] == [0, 1, 2, 3]
    assert int(pickle.loads(pickle.dumps(opened[0]))[5]["n"]) == 0


def _open_together(path, barrier, results):
    barrier.wait()
    results.put(int(fabric_data.open(path)[77]["n"]))


def test_processes_that_open_a_file_together_unpack_it_once(data, cache):
    path = write(data / "a.parquet", n=list(range(1000)))
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(3), context.Queue()
    processes = [context.Process(target=_open_together, args=(path, barrier, results)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [results.get(timeout=120) for _ in processes] == [77] * 3
    for process in processes:
        process.join()
    assert len([found for found in cache.iterdir() if found.is_dir()]) == 1


def test_a_killed_unpacking_process_leaves_no_entry_that_looks_complete(data, cache):
    path = write(data / "a.parquet", n=list(range(100_000)))
    code = f"""
import os, signal, fabric_data
from fabric_data import columns
put = columns.Writer.put
def dies(self, parts):
    put(self, parts)
    os.kill(os.getpid(), signal.SIGKILL)
columns.Writer.put = dies
fabric_data.open({str(path)!r})
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert [found.name for found in cache.iterdir() if found.is_dir()], "the killed process must have begun to unpack"
    dataset = fabric_data.open(path)
    assert all(int(dataset[i]["n"]) == i for i in range(0, 100_000, 997))
    assert len([found for found in cache.iterdir() if found.is_dir()]) == 1, "expected only the new entry"


def test_arrays_are_opened_joined_and_checked(data):
    np.save(data / "x.npy", np.arange(12, dtype=np.float64).reshape(4, 3))
    np.save(data / "label.npy", np.array([3, 2, 1, 0], dtype=np.int32))
    assert fabric_data.open(data / "x.npy")[2].tolist() == [6.0, 7.0, 8.0]
    dataset = fabric_data.open(data, ["x", "label"], dtype=torch.float32)
    again = pickle.loads(pickle.dumps(dataset))
    for found in (dataset, again):
        x, label = found[1]
        assert (x.tolist(), x.dtype, int(label), len(found)) == ([3.0, 4.0, 5.0], torch.float32, 2, 4)
    assert set(fabric_data.open(data)[0]) == {"x", "label"}
    np.save(data / "weight.npy", np.linspace(0, 1, 4))
    dataset = pickle.loads(pickle.dumps(fabric_data.open(data, [["weight", "label"], ["label"], ["x"]])))
    assert [(part.tolist(), part.dtype) for part in dataset[3]] == [
        ([1.0, 0.0], torch.float64), ([0], torch.int32), ([9.0, 10.0, 11.0], torch.float64)]
    with pytest.raises(DataProblem, match=r"x.npy and .*label.npy: an array of several dimensions cannot be joined"):
        fabric_data.open(data, [["x", "label"]])
    (data / "weight.npy").unlink()
    np.save(data / "label.npy", np.zeros(3))
    with pytest.raises(DataProblem, match="label has 3, x has 4"):
        fabric_data.open(data)
    with pytest.raises(DataProblem, match="no array 'y'"):
        fabric_data.open(data, ["y"])
    np.save(data / "label.npy", np.array(["a"], dtype=object), allow_pickle=True)
    with pytest.raises(DataProblem, match=r"label.npy cannot be mapped as an array"):
        fabric_data.open(data)


def test_images_are_read_with_their_classes(data):
    image = pytest.importorskip("PIL.Image")
    for number, name in enumerate(["dog/b.png", "cat/a.png", "dog/deep/a.png", "_mine/x.png"]):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (3, 2), (number, 0, 9)).save(data / name)
    dataset = fabric_data.open(data)
    assert dataset.classes == ["cat", "dog"]
    assert [(int(dataset[i][0][0, 0, 0]), dataset[i][1]) for i in range(3)] == [(1, 0), (0, 1), (2, 1)]
    assert dataset[0][0].shape == (3, 2, 3) and dataset[0][0].dtype == torch.uint8
    (data / "cat" / "a.png").write_bytes(b"no picture")
    with pytest.raises(DataProblem, match=r"a.png cannot be read as a picture"):
        dataset[0]
    image.new("RGB", (1, 1)).save(data / "loose.png")
    with pytest.raises(DataProblem, match=r"loose.png is not in the folder of a class"):
        fabric_data.open(data)


@pytest.mark.parametrize(("kind", "told"), [
    ("table", "row {}: the table has 3"), ("arrays", "element {}: the arrays have 3"),
    ("pictures", "picture {}: the folders have 3")])
def test_a_data_set_is_indexed_like_a_list(data, kind, told):
    if kind == "table":
        write(data / "a.parquet", n=[0, 1, 2])
    elif kind == "arrays":
        np.save(data / "n.npy", np.arange(3))
    else:
        image = pytest.importorskip("PIL.Image")
        (data / "class").mkdir()
        for number in range(3):
            image.new("RGB", (1, 1), (number, 0, 0)).save(data / "class" / f"{number}.png")
    dataset = fabric_data.open(data)

    def number(sample) -> int:
        return int(sample[0].flatten()[0] if kind == "pictures" else sample["n"])

    asked = (0, 2, -1, -3, True, np.int64(1), np.uint8(2), torch.tensor(1), torch.tensor(-2))
    assert [number(dataset[index]) for index in asked] == [[0, 1, 2][int(index)] for index in asked]
    assert [number(sample) for sample in dataset] == [0, 1, 2]
    some = torch.utils.data.Subset(dataset, [2, 0])
    assert [number(sample) for sample in some] == [2, 0] and len(next(iter(DataLoader(some, 2)))) == len(dataset[0])
    for index in (3, -4, np.int64(3), 2**70):
        with pytest.raises(IndexError, match=re.escape("there is no " + told.format(index)) + "$"):
            dataset[index]
    for index in (slice(0, 3), [1, 2], 1.5, 1.0, "1", None, np.float32(1), torch.tensor([0, 1])):
        with pytest.raises(TypeError, match=r"index of one .* must be a whole number.*torch\.utils\.data\.Subset"):
            dataset[index]


def test_data_sources_of_the_job_are_opened_by_name(data, tmp_path, monkeypatch):
    write(data / "a" / "t.parquet", n=[5])
    write(data / "b" / "t.parquet", n=[6])
    listed = tmp_path / "sources.json"
    listed.write_text(json.dumps([{"name": name, "path": str(data / name), "type": "fs"} for name in "ab"]))
    monkeypatch.setenv("DLI_DATA_SOURCES_FILE", str(listed))
    monkeypatch.setenv("DATA_DIR", str(data / "a"))
    assert [source.name for source in fabric_data.sources()] == ["a", "b"]
    assert (fabric_data.open()[0]["n"], fabric_data.open("b")[0]["n"]) == (5, 6)
    listed.write_text(json.dumps([{"name": name, "path": str(data / folder), "type": "fs"}
                                  for name, folder in (("日本", "a"), ("Tät/1", "b"))]))
    assert [fabric_data.open(name)[0]["n"] for name in ("日本", "Tät/1", "Ta\u0308t/1")] == [5, 6, 6]
    with pytest.raises(DataProblem, match="T-t-1 does not exist; the data sources of this job are 日本, Tät/1"):
        fabric_data.open("T-t-1")
    listed.write_text(json.dumps([{"name": name, "path": str(data / name), "type": "fs"} for name in "ab"]))
    with pytest.raises(DataProblem, match="c does not exist; the data sources of this job are a, b"):
        fabric_data.open("c")
    listed.write_text("{")
    with pytest.raises(DataProblem, match=r"sources.json cannot be read"):
        fabric_data.open()
    monkeypatch.delenv("DLI_DATA_SOURCES_FILE")
    assert fabric_data.open()[0]["n"] == 5


def test_streamed_sources_are_read(data, tmp_path, monkeypatch, cache):
    write(data / "a.parquet", n=[5, 6])
    write(data / "b.parquet", n=[7])
    (tmp_path / "options.json").write_text('{"auto_mkdir": false}')
    about = {"name": "far", "type": "connection", "access": "stream", "path": str(tmp_path / "none"),
             "urls": [f"file://{data}/{name}.parquet" for name in "ab"],
             "storageOptionsFile": str(tmp_path / "options.json")}
    listed = tmp_path / "sources.json"
    listed.write_text(json.dumps([about]))
    monkeypatch.setenv("DLI_DATA_SOURCES_FILE", str(listed))
    for source in (None, "far"):
        dataset = fabric_data.open(source, ["n"])
        assert [dataset[i] for i in range(len(dataset))] == [(5,), (6,), (7,)]
    assert pickle.loads(pickle.dumps(dataset))[2] == (7,)
    write(data / "b.parquet", n=[8, 9])
    assert fabric_data.open("far", ["n"])[3] == (9,)
    (data / "b.parquet").unlink()
    with pytest.raises(DataProblem, match=r"b\.parquet cannot be read"):
        fabric_data.open("far")
    listed.write_text(json.dumps([about | {"urls": ["file:///x.csv"]}]))
    with pytest.raises(DataProblem, match=r"x\.csv is a stream, but only \*\.parquet"):
        fabric_data.open("far")


def test_loader_processes_see_each_row_once(data):
    for number in range(3):
        write(data / f"{number}.parquet", n=list(range(number * 10, number * 10 + 10)))
    dataset = fabric_data.open(data, ["n"])
    seen = [int(n) for (batch,) in DataLoader(dataset, batch_size=4, num_workers=2, shuffle=True) for n in batch]
    assert sorted(seen) == list(range(30))


def test_the_example_of_the_documentation_runs(data, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "data-loading.md").read_text(encoding="utf-8")
    example = page.partition("```python\n")[2].partition("```")[0]
    write(data / "a.parquet", x=[1, 2], y=[3, 4], label=[7, 8])
    monkeypatch.setenv("DATA_DIR", str(data))
    seen: dict = {}
    exec(compile(example, "data-loading.md", "exec"), seen)
    assert seen["inputs"].tolist() == [1, 3] and seen["label"] == 7
