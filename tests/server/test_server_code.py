"""The code of an exec: the submitted files, without files that its program created beside them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from live_server import Live, tar
from test_server_swapped_logs import FILES, SECRET

from local_backend.services import submitted_code
from local_backend.services.submitted_code import LONGEST_TEXT
from local_backend.submit import manifest

FOLDER = "--exec-start PyTorch --model-dir model --model-main train.py"


def submitted(live: Live, files: dict[str, bytes]) -> str:
    packed = tar({f"model/{name}": content for name, content in {"train.py": b"print(1)\n", **files}.items()})
    return live.submitted(FOLDER, files={"x.modelDir.tar": packed})


def asked(live: Live, exec_id: str) -> dict[str, Any]:
    answer = live.call("GET", f"/execs/{exec_id}/code")
    assert answer.status == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def names(found: dict[str, Any]) -> list[str]:
    return [file["path"] for file in found["files"]]


def test_each_file_has_path_size_hash_and_text(live: Live) -> None:
    found = asked(live, submitted(live, {"lib/ä.py": "ü = 2\n".encode(), "weights": b"\xff\0", "nul": b"a\0"}))
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in (
        ("train.py", b"print(1)\n"), ("ä.py", "ü = 2\n".encode()), ("weights", b"\xff\0"), ("nul", b"a\0"))}
    assert found == {"complete": True, "files": [
        {"path": "nul", "bytes": 2, "sha256": sums["nul"]},
        {"path": "train.py", "bytes": 9, "sha256": sums["train.py"], "text": "print(1)\n"},
        {"path": "weights", "bytes": 2, "sha256": sums["weights"]},
        {"path": "lib/ä.py", "bytes": 7, "sha256": sums["ä.py"], "text": "ü = 2\n"},
    ]}


def test_the_code_of_one_file_or_no_file_is_shown(live: Live) -> None:
    assert names(asked(live, live.submitted())) == ["main.py"]
    assert asked(live, live.submitted("--exec-start PyTorch --user-cmd -- true", files={})) == {
        "files": [], "complete": True}


def test_a_file_beside_the_folder_is_shown(live: Live) -> None:
    files = {"x.modelDir.tar": tar({"model/train.py": b"1"}), "more.txt": b"2"}
    assert names(asked(live, live.submitted(FOLDER, files=files))) == ["../more.txt", "train.py"]


def test_files_written_by_the_program_are_omitted(live: Live) -> None:
    exec_id = submitted(live, {"gone.py": b"", "__pycache__/train.pyc": b"x"})
    folder = live.paths(exec_id).code(live.row(exec_id).workload)
    (folder / "out.txt").write_text("written")
    (folder / "gone.py").unlink()
    found = asked(live, exec_id)
    assert names(found) == ["train.py"] and found["complete"]


def test_for_an_exec_of_an_earlier_version_all_present_files_are_shown(live: Live) -> None:
    exec_id = submitted(live, {})
    live.database.write(lambda c: c.exec_driver_sql("UPDATE execs SET bundle = NULL"))
    folder = live.paths(exec_id).code(live.row(exec_id).workload)
    (folder / "out.txt").write_text("written")
    os.symlink("/etc", folder / "etc")
    assert names(asked(live, exec_id)) == ["out.txt", "train.py"]


def test_large_files_lack_text_or_hash(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"#" * LONGEST_TEXT
    exec_id = submitted(live, {"a.py": text, "b.py": text, "c.py": text + b"#", "d.bin": b"x" * (3 * LONGEST_TEXT)})
    monkeypatch.setattr(submitted_code, "MOST_TEXT", LONGEST_TEXT + 9)
    monkeypatch.setattr(submitted_code, "MOST_READ", 5 * LONGEST_TEXT)
    found = asked(live, exec_id)["files"]
    told = {file["path"]: (file["bytes"] // LONGEST_TEXT, "sha256" in file, "text" in file) for file in found}
    assert told == {"a.py": (1, True, True), "b.py": (1, True, False), "c.py": (1, True, False),
                    "d.bin": (3, False, False), "train.py": (0, True, True)}
    assert found[2]["sha256"] == hashlib.sha256(text + b"#").hexdigest()


def test_a_list_of_too_many_files_is_cut_and_marked_incomplete(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "MOST", 3)
    found = asked(live, submitted(live, {f"data/{number}": b"" for number in range(9)}))
    assert names(found) == ["train.py", "data/0", "data/1"] and found["complete"] is False
    found = asked(live, submitted(live, {"a": b"", "b": b""}))
    assert len(names(found)) == 3 and found["complete"] is True


@pytest.mark.parametrize("deed", FILES)
def test_a_special_file_in_place_of_code_is_not_read(live: Live, tmp_path: Path, deed: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    exec_id = submitted(live, {"lib/a.py": b"1"})
    place = live.paths(exec_id).code(live.row(exec_id).workload) / "lib" / "a.py"
    place.unlink()
    FILES[deed](place, secret)
    assert names(asked(live, exec_id)) == ["train.py"]


def test_a_folder_replaced_by_a_link_is_not_followed(live: Live, tmp_path: Path) -> None:
    exec_id = submitted(live, {"lib/a.py": b"1"})
    folder = live.paths(exec_id).code(live.row(exec_id).workload) / "lib"
    (tmp_path / "a.py").write_text(SECRET)
    folder.rename(tmp_path / "away")
    folder.symlink_to(tmp_path)
    assert names(asked(live, exec_id)) == ["train.py"]


def test_the_code_of_an_unknown_exec_is_refused(live: Live) -> None:
    answer = live.call("GET", "/execs/local-99/code")
    assert answer.error == (400, "exec.not_found") and "local-99" in answer.text
