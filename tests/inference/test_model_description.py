"""Rules of model.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from local_backend.errors import Invalid
from local_backend.inference.description import read_description

VALUE = {"name": "ping-pong", "tag": "test", "weight_path": "N/A", "runtime": "dlipy3", "kernel_path": "kernel.py",
         "schema_version": "1"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kernel.py").write_text("pass\n")
    (tmp_path / "README.md").write_text("# Ping-pong\n")
    return tmp_path


def write(folder: Path, **changes: Any) -> Path:
    value = {key: one for key, one in (VALUE | changes).items() if one is not None}
    (folder / "model.json").write_text(json.dumps(value))
    return folder


def test_a_complete_model_is_read(folder: Path) -> None:
    found = read_description(write(
        folder, attributes=[{"key": "classes", "value": "10"}], mk_environments=[{"name": "A", "value": "1"}],
        platform="mine"))
    assert (found.name, found.runtime, found.kernel_path) == ("ping-pong", "dlipy3", "kernel.py")
    assert found.ready_made is None
    assert found.readme == "# Ping-pong\n"
    assert found.environment == {"A": "1"}
    assert found.metadata == {"platform": "mine"}


@pytest.mark.parametrize(("changes", "words"), [
    ({"name": "Ping"}, ("name", "'Ping'", "a-z 0-9 -")),
    ({"name": None}, ("name", "None")),
    ({"name": "a" * 64}, ("name", "1 to 63")),
    ({"tag": None}, ("tag", "required")),
    ({"weight_path": None}, ("weight_path", "required")),
    ({"runtime": 3}, ("runtime", "3")),
    ({"kernel_path": None}, ("kernel_path", "required")),
    ({"kernel_path": "k" * 256}, ("kernel_path", "must be the path")),
    ({"weight_path": "w/" * 1500}, ("weight_path", "must be the path")),
    ({"readme": "r" * 300}, ("readme", "must be the path")),
    ({"tag": "t" * 200_000}, ("model.json", "131072")),
    ({"kernel_path": "../kernel.py"}, ("kernel_path", "'../kernel.py'")),
    ({"schema_version": "2"}, ("schema_version", "'2'", '"1"')),
    ({"attributes": [{"name": "x"}]}, ("attributes", "key")),
    ({"mk_environments": [{"key": "x"}]}, ("mk_environments", "name")),
    ({"kernel_type": "magic"}, ("kernel_type", "'magic'", "onnx")),
    ({"kernel_pat": "x"}, ("kernel_pat", "kernel_path")),
])
def test_a_bad_key_is_refused(folder: Path, changes: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(Invalid) as refused:
        read_description(write(folder, **changes))
    assert refused.value.code == "model.description"
    assert all(word in str(refused.value) for word in words), str(refused.value)


@pytest.mark.parametrize(("missing", "changes"), [
    ("model.json", {}), ("README.md", {}), ("kernel.py", {}), ("", {"weight_path": "weights.pt"}),
    ("", {"readme": "OTHER.md"}),
])
def test_a_missing_file_is_named(folder: Path, missing: str, changes: dict[str, Any]) -> None:
    write(folder, **changes)
    if missing:
        (folder / missing).unlink()
    with pytest.raises(Invalid) as refused:
        read_description(folder)
    assert refused.value.code == "model.files"
    assert (missing or next(iter(changes.values()))) in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"name": "a", "name": "b"}', b"\xff", b'{"name":'])
def test_what_is_no_object_is_refused(folder: Path, content: bytes) -> None:
    (folder / "model.json").write_bytes(content)
    with pytest.raises(Invalid) as refused:
        read_description(folder)
    assert refused.value.code == "model.description"


def test_a_ready_made_kernel_needs_only_its_weights(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"x")
    found = read_description(tmp_path, "onnx", "digits")
    assert (found.name, found.ready_made, found.kernel_path) == ("digits", "onnx", None)
    assert found.value["weight_path"] == "net.onnx"


def test_several_possible_weights_are_refused(tmp_path: Path) -> None:
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(Invalid) as refused:
        read_description(tmp_path, "onnx", "digits")
    assert refused.value.code == "model.description"
    assert "a.onnx, b.onnx" in str(refused.value)
