"""Helpers that write files for fabric_data, and convert the values of its samples."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch


def write(path: Path, **columns: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def plain(value: object) -> object:
    return value.tolist() if isinstance(value, (torch.Tensor, np.generic)) else value
