"""Which files are the user's own, and which belong to installed packages."""

from pathlib import Path

import pytest

from local_backend.elastic.script.user_code import is_user_file


@pytest.mark.parametrize("target", ["", "vendor"])
def test_packages_that_pip_installs_beside_a_program_are_libraries(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "code" / target
    record = folder / "toy-1.0.dist-info" / "RECORD"
    record.parent.mkdir(parents=True)
    record.write_text("../../bin/toy,,\ntoy-1.0.dist-info/RECORD,,\ntoy/deep/layer.py,sha256=x,12\nsingle.py,,\n")
    assert not is_user_file(str(folder / "toy" / "deep" / "layer.py"))
    assert not is_user_file(str(folder / "single.py"))
    for own in ("train.py", "models/net.py", "mine/toy/layer.py"):
        assert is_user_file(str(folder / own))


def test_a_dist_info_without_a_record_names_no_files(tmp_path: Path) -> None:
    (tmp_path / "toy-1.0.dist-info").mkdir()
    assert is_user_file(str(tmp_path / "toy" / "layer.py"))
