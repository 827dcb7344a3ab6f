"""Replacements for missing values: a replacement is stored exactly or rejected."""

import datetime
import decimal
import re
from pathlib import Path

import fabric_data
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fabric_data import DataProblem
from fabric_files import plain, write


def test_missing_values_are_filled_or_rejected(data):
    write(data / "a.parquet", n=[1, None], x=[0.5, None], t=["a", None])
    with pytest.raises(DataProblem, match=r"column n: it has missing values.*fill=\{'n'"):
        fabric_data.open(data)
    dataset = fabric_data.open(data, fill={"n": -1, "t": "?"})
    assert dataset[1]["n"] == -1 and np.isnan(dataset[1]["x"]) and dataset[1]["t"] == "?"
    assert fabric_data.open(data, fill={"n": -2, "t": "?"})[1]["n"] == -2
    with pytest.raises(DataProblem, match="'many' does not fit int64"):
        fabric_data.open(data, ["n"], fill={"n": "many"})
    with pytest.raises(DataProblem, match="'fill' must map columns to values"):
        fabric_data.open(data, fill=-1)


def refused(file: Path, value: object) -> str:
    """Return the error text for a value that the column n of a file cannot hold."""
    return re.escape(f"column n: fill: {value!r} does not fit {pq.read_schema(file).field('n').type}")


@pytest.mark.parametrize(("kind", "value", "whole"), [
    (pa.int64(), 1.5, 2.0), (pa.int8(), np.float32(-0.5), np.int64(3)), (pa.int64(), decimal.Decimal("1.5"), 7),
    (pa.timestamp("us"), 0.5, 5), (pa.list_(pa.int64()), [1, 2.5], [1, 2]), (pa.uint8(), -1, 1), (pa.int8(), 300, 3),
    (pa.list_(pa.float32(), 2), [0.5], [0.5, 1.5]), (pa.bool_(), 1, True), (pa.float64(), "a", 0.25),
    (pa.float32(), 1e300, 3e38), (pa.float32(), 1e-300, 0.0), (pa.list_(pa.float32()), [0.5, -1e300], [0.5]),
    (pa.int64(), float("nan"), 1), (pa.int64(), np.float64(1e300), 2), (pa.int8(), float("-inf"), 3),
    (pa.binary(2), "abc", "ab"), (pa.float32(), 2**24 + 1, 2**24),
])
def test_a_fill_value_that_would_be_truncated_is_rejected(data, kind, value, whole):
    """Also in a column without missing values."""
    for present in ([], [None]):
        pq.write_table(pa.table({"n": pa.array(present, kind)}), data / "a.parquet")
        with pytest.raises(DataProblem, match=refused(data / "a.parquet", value)):
            fabric_data.open(data, fill={"n": value})
    found = plain(fabric_data.open(data, fill={"n": whole})[0]["n"])
    assert found == (whole.encode() if isinstance(whole, str) else np.float32(whole) if kind == pa.float32() else whole)
    assert fabric_data.open(write(data / "x.parquet", x=[0.5]), fill={"x": float("nan")})[0]["x"] == 0.5


MOMENT = datetime.datetime(2020, 2, 29, 12, 30, 1, 500_000)
DAY = datetime.datetime(2020, 2, 29)


@pytest.mark.parametrize(("kind", "value", "whole", "held"), [
    (pa.timestamp("ms"), MOMENT.replace(microsecond=1), MOMENT, 1582979401500),
    (pa.timestamp("ns"), 0.5, MOMENT, 1582979401500000000), (pa.timestamp("ns"), 1.5, 3, 3),
    (pa.timestamp("us", "Europe/Berlin"), 0.5, MOMENT.replace(tzinfo=datetime.timezone.utc), 1582979401500000),
    (pa.date32(), MOMENT, DAY, 18321), (pa.date32(), 1.5, DAY.date(), 18321),
    (pa.list_(pa.date32(), 1), [MOMENT], [DAY], [18321]),
    (pa.time32("ms"), datetime.time(1, 0, 0, 1), datetime.time(1), 3600000),
    (pa.time32("ms"), datetime.time(1, tzinfo=datetime.timezone.utc), datetime.time(1), 3600000),
    (pa.duration("s"), datetime.timedelta(milliseconds=1500), datetime.timedelta(minutes=1), 60),
    (pa.timestamp("ms"), np.datetime64(MOMENT), np.datetime64("2020-02-29", "ms"), 1582934400000),
    (pa.duration("ms"), np.timedelta64(1, "us"), np.timedelta64(2, "ms"), 2),
])
def test_a_fill_value_of_a_time_column_that_would_be_truncated_is_rejected(data, kind, value, whole, held):
    pq.write_table(pa.table({"n": pa.array([None], kind)}), data / "a.parquet")
    with pytest.raises(DataProblem, match=refused(data / "a.parquet", value)):
        fabric_data.open(data, fill={"n": value})
    assert plain(fabric_data.open(data, fill={"n": whole})[0]["n"]) == held


@pytest.mark.parametrize("kind", [pa.float64(), pa.list_(pa.float64()), pa.decimal128(38, 0)])
def test_a_fill_value_must_fit_the_dtype(data, kind):
    value = decimal.Decimal(10**37) if pa.types.is_decimal(kind) else [1e37] if pa.types.is_list(kind) else 1e37
    rounded = [np.float32(1e37)] if pa.types.is_list(kind) else np.float32(1e37)
    pq.write_table(pa.table({"n": pa.array([None], kind)}), data / "a.parquet")
    assert plain(fabric_data.open(data, fill={"n": value}, dtype="float32")[0]["n"]) == rounded
    with pytest.raises(DataProblem, match=r"column n: fill: .* does not fit float16, the requested dtype"):
        fabric_data.open(data, fill={"n": value}, dtype="float16")
