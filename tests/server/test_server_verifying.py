"""POST /execs/{id}/verify: start an exec that repeats the first steps of another exec."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from live_server import Live, tar

from local_backend.store import execs
from local_backend.store.execs import ExecRow

ELASTIC = "--exec-start edtPyTorch --numWorker 3 --msd-attr verify=5 --model-dir model --model-main train.py --epochs 2"
FILES = {"x.modelDir.tar": tar({"model/train.py": b"print(1)\n", "model/lib/a.py": b"A = 1\n"})}


def row(live: Live, exec_id: str) -> ExecRow:
    found = live.database.read(lambda c: execs.get(c, exec_id))
    assert found is not None
    return found


def test_a_verification_has_the_code_arguments_and_data_of_the_exec(live: Live, tmp_path: Path) -> None:
    first = live.submitted(ELASTIC + " --msd-env A=secret", files=FILES)
    answer = live.call("POST", f"/execs/{first}/verify?steps=7")
    assert answer.status == 200, answer.text
    made = answer.json()
    assert made["id"] != first and made["numWorker"] == 3 and made["elastic"] is True
    assert made["args"].startswith("--exec-start edtPyTorch --msd-attr verify_only=7 --numWorker 3 ")
    before, spec = row(live, first).workload, row(live, made["id"]).workload
    assert spec.program.attributes == {"verify_only": "7"} and before.program.attributes == {"verify": "5"}
    program = spec.program
    assert (program.main, program.model_dir, program.arguments) == ("train.py", "model", ("--epochs", "2"))
    assert program.bundle == before.program.bundle
    assert spec.environment.variables == before.environment.variables != {}
    told = [live.call("GET", f"/execs/{one}/code").json() for one in (first, made["id"])]
    assert told[0] == told[1] and len(told[0]["files"]) == 2


def test_a_verification_has_20_steps_by_default(live: Live) -> None:
    made = live.call("POST", f"/execs/{live.submitted(ELASTIC, files=FILES)}/verify").json()
    assert row(live, made["id"]).workload.program.attributes == {"verify_only": "20"}


@pytest.mark.parametrize("steps", ["0", "-1", "many", "1.5", ""])
def test_an_invalid_number_of_steps_is_refused(live: Live, steps: str) -> None:
    first = live.submitted(ELASTIC, files=FILES)
    assert live.call("POST", f"/execs/{first}/verify?steps={steps}").status == 400
    assert len(live.call("GET", "/execs").json()) == 1


def test_an_exec_that_is_not_elastic_is_refused(live: Live) -> None:
    answer = live.call("POST", f"/execs/{live.submitted()}/verify")
    assert answer.error == (400, "verify.not_elastic")


def test_the_verified_code_is_as_submitted_despite_later_changes(live: Live) -> None:
    first = live.submitted(ELASTIC, files=FILES)
    (Path(row(live, first).work_dir) / "lib/a.py").unlink()
    made = live.call("POST", f"/execs/{first}/verify").json()
    assert (Path(made["workDir"]) / "lib/a.py").read_bytes() == b"A = 1\n"


def test_a_changed_bundle_is_refused(live: Live) -> None:
    first = live.submitted(ELASTIC, files=FILES)
    bundle = live.settings.paths.bundle(str(row(live, first).bundle))
    (bundle / "model/lib/a.py").write_bytes(b"A = 2\n")
    answer = live.call("POST", f"/execs/{first}/verify")
    assert answer.error == (400, "verify.files_gone")
    assert [one["id"] for one in live.call("GET", "/execs").json()] == [first]


def test_an_exec_of_an_earlier_version_without_a_bundle_is_refused(live: Live) -> None:
    first = live.submitted(ELASTIC, files=FILES)
    spec = row(live, first).workload
    old = replace(spec, program=replace(spec.program, bundle=None)).to_json()
    live.database.write(lambda c: c.exec_driver_sql("UPDATE execs SET spec = ? WHERE id = ?", (old, first)))
    answer = live.call("POST", f"/execs/{first}/verify")
    assert answer.error == (400, "verify.files_gone")


def test_an_unknown_exec_is_refused(live: Live) -> None:
    assert live.call("POST", "/execs/local-99/verify").status == 400


def test_an_exec_with_credentials_that_are_not_stored_is_refused(live: Live) -> None:
    source = [{"type": "connection_asset", "name": "d", "connection": {"kind": "s3", "access_key": "***"}}]
    first = live.submitted(ELASTIC, files=FILES)
    live.database.write(lambda c: c.exec_driver_sql(
        "UPDATE execs SET data_source = ? WHERE id = ?", (json.dumps(source), first)))
    answer = live.call("POST", f"/execs/{first}/verify")
    assert answer.error == (400, "verify.credentials")
