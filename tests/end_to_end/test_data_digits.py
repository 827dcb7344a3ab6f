"""The digits sample gives the same weights with fetched data as with local files."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest
from postgres_server import PostgresServer
from server_process import NotThere
from user import User

sys.path.insert(0, str(Path(__file__).parent.parent / "fetching"))

from file_servers import s3_server

pytestmark = pytest.mark.slow

SAMPLE = Path(__file__).parent.parent.parent / "samples" / "digits"
FROM_FILE = """np.loadtxt(os.path.join(data_dir, "digits.csv.gz"), delimiter=",", dtype=np.float32)"""
FROM_EITHER = """_rows(data_dir)"""
READ_EITHER = '''

def _rows(data_dir):
    import glob

    parts = sorted(glob.glob(os.path.join(data_dir, "part-*.parquet")))
    if not parts:
        return np.loadtxt(os.path.join(data_dir, "digits.csv.gz"), delimiter=",", dtype=np.float32)
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(parts)
    return np.stack([column.to_numpy() for column in table.columns], axis=1).astype(np.float32)
'''


def weights(user: User, *words: str) -> str:
    """Return the SHA-256 of the final weights of a training."""
    model = ("--model-dir", "digits", "--model-main", "train.py", "--numWorker", "1")
    done = user.run("--exec-start", "edtPyTorch", *model, "--wait", *words, "--", "--epochs", "1")
    assert done.code == 0, done
    exec_id = done.json["execId"]
    found = next((user.home / "results").rglob(f"{exec_id}/model/train/model_epoch_final.pth"))
    return hashlib.sha256(found.read_bytes()).hexdigest()


def test_the_weights_do_not_depend_on_the_source_of_the_data(user: User, postgres: PostgresServer) -> None:
    shutil.copytree(SAMPLE, user.folder / "digits", ignore=shutil.ignore_patterns("data"))
    network = user.folder / "digits" / "network.py"
    text = network.read_text()
    assert FROM_FILE in text
    network.write_text(text.replace(FROM_FILE, FROM_EITHER) + READ_EITHER)
    content = (SAMPLE / "data" / "digits.csv.gz").read_bytes()
    expected = weights(user, "--cs-datastore-meta", f"type=fs,data_path={SAMPLE / 'data'}")

    database = postgres.new().database
    columns = ", ".join(f"c{number} real" for number in range(65))
    postgres.ask(f"CREATE TABLE digits (n serial, {columns})", database)
    rows = ",".join(f"({line})" for line in gzip.decompress(content).decode().split())
    names = ", ".join(f"c{number}" for number in range(65))
    postgres.ask(f"INSERT INTO digits ({names}) VALUES {rows}", database)
    connection = {"type": "postgresql", "host": str(postgres.folder), "username": "dlicmd", "database": database}
    location = {"query": f"SELECT {names} FROM digits ORDER BY n"}
    table = {"type": "connection", "connection": connection, "location": location}
    assert weights(user, "--data-source", json.dumps([table])) == expected

    try:
        with s3_server() as server:
            server.client().create_bucket(Bucket="train")
            server.client().put_object(Bucket="train", Key="sets/digits.csv.gz", Body=content)
            source = {"type": "s3", "connection": server.values, "location": {"bucket": "train", "path": "sets/"}}
            assert weights(user, "--data-source", json.dumps([source])) == expected
    except NotThere as problem:
        pytest.skip(str(problem))
