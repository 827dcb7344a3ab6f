"""Every valid form of a submission, and invalid bodies, parts and options."""

from __future__ import annotations

import json
import socket
import sys

import pytest
from live_server import TOKEN, Answer, Live, multipart, quoted, tar
from support import eventually

from dlicmd.contract import wire
from local_backend.vault import Vault

SINGLE = "--exec-start PyTorch --model-main main.py"
USER_CMD = "--exec-start PyTorch --user-cmd -- bash -c ls"


def test_a_plain_tar_without_a_top_folder_is_accepted(live: Live) -> None:
    content = tar({"./": b"", "./train.sh": b"echo", "./sub/x.py": b"1"}, zipped=False)
    data = json.dumps({
        "args": "--exec-start distPyTorch  --user-cmd \\\n -- bash train.sh ",
        "hardwareSpec": {"nodes": {"num_nodes": "2", "gpu": {"num_gpu": 1}, "mem": {"size": "4Gi"}}},
    })
    answer = live.submit("", {"x.modelDir.tar": content}, data)
    assert answer.status == 200, answer.text
    spec = live.row(answer.json()["id"]).workload
    assert spec.program.model_dir is None and spec.program.user_cmd == ("bash", "train.sh")
    asked = spec.resources
    assert (asked.num_worker, asked.device_num, asked.device_type, asked.memory) == (2, 1, "gpu", 4 * 2**30)
    assert (live.paths(spec.id).submitted / "sub" / "x.py").read_bytes() == b"1"
    assert answer.json()["args"].startswith("--exec-start distPyTorch  --user-cmd \\\n")


def test_the_command_line_overrides_the_hardware_spec(live: Live) -> None:
    data = json.dumps({"hardwareSpec": {"num_nodes": 5, "mem": {"size": "1g"}, "gpu": {"num_gpu": 4}}})
    args = "--exec-start distPyTorch --model-main main.py --numWorker 3 --workerMemory 2g --workerDeviceNum 1"
    spec = live.row(live.submitted(args, data=data)).workload
    assert (spec.resources.num_worker, spec.resources.memory, spec.resources.device_num) == (3, 2 * 2**30, 1)


@pytest.mark.parametrize("part", ["file", "main.py", "anything"])
def test_a_single_file_is_accepted_under_any_part_name(live: Live, part: str) -> None:
    body, kind = multipart([(part, "some/dir/main.py", b"print(1)")])
    args = quoted("--exec-start PyTorch --model-main some/dir/main.py --epochs 3")
    answer = live.call("POST", f"/execs/?args={args}", body, {"Content-Type": kind})
    spec = live.row(answer.json()["id"]).workload
    assert (spec.program.main, spec.program.model_dir, spec.program.arguments) == ("main.py", None, ("--epochs", "3"))
    assert (live.paths(spec.id).submitted / "main.py").read_bytes() == b"print(1)"


@pytest.mark.parametrize("content", [b"print(1)", tar({"m/main.py": b"print(1)"}),
                                     tar({"./main.py": b"print(1)"}, zipped=False)])
def test_a_file_part_without_a_file_name_is_accepted(live: Live, content: bytes) -> None:
    """Contract, 1.4: the SDK passes `files=[('file',(None,fh))]`; without the SDK core, the part has no file name."""
    body, kind = multipart([("file", None, content)])
    args = quoted("--exec-start PyTorch --model-main main.py")
    answer = live.call("POST", f"/execs?args={args}", body, {"Content-Type": kind})
    assert answer.status == 200, answer.text
    spec = live.row(answer.json()["id"]).workload
    assert live.paths(spec.id).code(spec).joinpath("main.py").read_bytes() == b"print(1)"


def test_the_data_part_may_come_from_a_json_file(live: Live) -> None:
    """`curl -F data=@job.json` sends the data this way. An empty `args` in the query is ignored."""
    data = json.dumps({"args": "--exec-start PyTorch --model-main main.py --epochs 2"}).encode()
    body, kind = multipart([("file", "main.py", b"print(1)"), ("data", "job.json", data)])
    answer = live.call("POST", "/execs?args=", body, {"Content-Type": kind})
    assert answer.status == 200, answer.text
    assert live.row(answer.json()["id"]).workload.program.arguments == ("--epochs", "2")


@pytest.mark.parametrize(("name", "content", "is_command"), [
    ("run.sh", b"#!/bin/bash\necho $DATA_DIR\n", True), ("tool", b"\x7fELF\x02\x01", True),
    ("run", b"#!/usr/bin/env python3\n", False), ("main.py", b"#!/bin/sh\n", False), ("prog", b"print(1)\n", False),
])
def test_a_main_program_that_is_not_python_is_run_directly(
    live: Live, name: str, content: bytes, is_command: bool
) -> None:
    """Contract, 5.3: 'lacks the x bit but has a `#!` line ... is made executable; executable: run directly'."""
    spec = live.row(live.submitted(f"--exec-start PyTorch --model-main {name} --x 1", files={name: content})).workload
    path = live.paths(spec.id).submitted / name
    expected = ((str(path), "--x", "1"), None) if is_command else (None, name)
    assert (spec.program.user_cmd, spec.program.main) == expected
    assert bool(path.stat().st_mode & 0o100) == is_command


def test_extra_files_are_stored_beside_the_model(live: Live) -> None:
    body, kind = multipart([
        ("file", "t.modelDir.tar", tar({"m/main.py": b"1"})), ("file", "env.yaml", b"a: 1"),
        ("file", "p.tar.bz2", b"x"),
    ])
    args = quoted("--exec-start PyTorch --model-dir m --model-main main.py --conda-env-yaml env.yaml")
    answer = live.call("POST", f"/execs?args={args}", body, {"Content-Type": kind})
    assert answer.status == 200, answer.text
    submitted = live.paths(answer.json()["id"]).submitted
    assert sorted(path.name for path in submitted.iterdir()) == ["env.yaml", "m", "p.tar.bz2"]


@pytest.mark.parametrize("name", ["env.tar", "env.tar.gz", "env.tgz"])
def test_an_archive_of_conda_package_is_a_plain_file_beside_the_model(live: Live, name: str) -> None:
    """Contract, 1.4: '`--conda-package F`: further parts also named `file`'."""
    package = tar({"bin/python": b"1"})
    body, kind = multipart([("file", "t.modelDir.tar", tar({"m/main.py": b"1"})), ("file", name, package)])
    args = quoted(f"--exec-start PyTorch --model-dir m --model-main main.py --conda-package {name}")
    answer = live.call("POST", f"/execs?args={args}", body, {"Content-Type": kind})
    assert answer.status == 200, answer.text
    submitted = live.paths(answer.json()["id"]).submitted
    assert sorted(path.name for path in submitted.iterdir()) == [name, "m"]
    assert (submitted / name).read_bytes() == package


def test_a_submission_may_contain_only_a_user_command(live: Live) -> None:
    spec = live.row(live.submitted(USER_CMD, files={})).workload
    assert spec.program.user_cmd == ("bash", "-c", "ls") and spec.program.main is None and spec.program.arguments == ()


def test_data_is_accepted_as_a_form_field(live: Live) -> None:
    (live.settings.data_fs / "mnist").mkdir()
    data = json.dumps({"dataSource": [{"type": "fs", "location": {"paths": "mnist"}}]})
    body = f"data={quoted(data)}".encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    answer = live.call("POST", f"/execs/?args={quoted(USER_CMD)}", body, headers)
    assert answer.json()["dataSource"] == [{"type": "fs", "location": {"paths": "mnist"}}]
    assert live.row(answer.json()["id"]).workload.data.data_dir == str(live.settings.data_fs / "mnist")


def test_argv_overrides_args_and_keeps_quoted_words(live: Live) -> None:
    words = ["--exec-start", "PyTorch", "--appName", "DDP Tutorial", "--model-main", "main.py", "--", "a  b", 'q"', ""]
    spec = live.row(live.submitted("--exec-start PyTorch", data=json.dumps({"argv": words}))).workload
    assert spec.name == "DDP Tutorial" and spec.program.arguments == ("a  b", 'q"', "")


@pytest.mark.parametrize("name", ["trüb \"x\" 'y'.py", "a b.py", "日本.py", "100%.py", "x;y=z.py"])
def test_names_with_spaces_quotes_and_umlauts_are_kept(live: Live, name: str) -> None:
    body, kind = multipart([("file", name.replace('"', "%22"), b"1")])
    data = json.dumps({"argv": ["--exec-start", "PyTorch", "--model-main", f"dir/{name}"]})
    body, kind = multipart([("file", name.replace('"', "%22"), b"1"), ("data", None, data.encode())])
    answer = live.call("POST", "/execs", body, {"Content-Type": kind})
    assert answer.status == 200, answer.text
    assert live.row(answer.json()["id"]).workload.program.main == name


def test_a_file_name_in_the_older_encoding_is_accepted(live: Live) -> None:
    body = (
        b"--XbX\r\nContent-Disposition: form-data; name=\"file\"; filename*=utf-8''tr%C3%BCb.py\r\n\r\n1\r\n--XbX--\r\n"
    )
    args = quoted("--exec-start PyTorch --model-main trüb.py")
    answer = live.call("POST", f"/execs?args={args}", body, {"Content-Type": "multipart/form-data; boundary=XbX"})
    assert answer.status == 200, answer.text


@pytest.mark.parametrize(
    ("args", "files", "main", "model_dir"),
    [
        ("--model-dir d --model-main train.py", {"d/train.py": b"1"}, "train.py", "d"),
        ("--model-dir d --model-main sub/train.py", {"d/sub/train.py": b"1"}, "sub/train.py", "d"),
        ("--model-dir d --model-main a/b/d/train.py", {"d/train.py": b"1"}, "train.py", "d"),
        ("--model-dir d --model-main ./d/sub/t.py", {"d/sub/t.py": b"1"}, "sub/t.py", "d"),
        (r"--model-dir d --model-main sub\train.py", {"d/sub/train.py": b"1"}, "sub/train.py", "d"),
        (r"--model-dir d --model-main C:\work\d\train.py", {"d/train.py": b"1"}, "train.py", "d"),
        (r"--model-dir d --model-main a\b.py", {r"d/a\b.py": b"1", "d/a/b.py": b"2"}, r"a\b.py", "d"),
        ("--model-main t.py", {"d/t.py": b"1"}, "t.py", "d"),
        ("--model-main t.py", {"t.py": b"1", "d/t.py": b"2"}, "t.py", None),
        ("--model-dir d", {"d/main.py": b"1", "d/x.py": b"1"}, "main.py", "d"),
        ("--model-dir d", {"d/only.py": b"1", "d/data.txt": b"1"}, "only.py", "d"),
        ("--model-dir .", {"t.py": b"1", "u.txt": b""}, "t.py", None),
    ],
)
def test_the_main_file_is_found(live: Live, args: str, files, main: str, model_dir: str | None) -> None:
    answer = live.submit(f"--exec-start PyTorch {args}", {"x.modelDir.tar": tar(files)})
    assert answer.status == 200, answer.text
    spec = live.row(answer.json()["id"]).workload
    assert (spec.program.main, spec.program.model_dir) == (main, model_dir)


BAD_ARGS = [
    "", " ", "--exec-get local-1", "--exec-start Nothing --model-main main.py", "--exec-start pytorch", "word",
    "--exec-start Tensorflow --model-main main.py", "--exec-start PyTorch --pbmodel-name vgg16",
    "--exec-start PyTorch --user-cmd",
    "--exec-start PyTorch --user-cmd --",
    f"{SINGLE} --numWorker 2", f"{SINGLE} --appName ''", f"{SINGLE} --msd-env NOVALUE", f"{SINGLE} --msd-env 1X=2",
    f"{SINGLE} --msd-attr x", f"{SINGLE} --conda-env-name nowhere", f"{SINGLE} --conda-env-name /nowhere/at/all",
    f"{SINGLE} --cs-datastore-meta type=s3", f"{SINGLE} --cs-datastore-meta type=fs,data_path=/none",
    f"{SINGLE} --cs-datastore-meta type=fs,data_path=../..", f"{SINGLE} --cs-datastore-meta nonsense",
    f"{SINGLE} --cs-datastore-meta type=fs,speed=9", f"{SINGLE} --workerDeviceType gpu --workerDeviceNum 0",
    "--exec-start PyTorch --model-main other.py", "--exec-start PyTorch --model-main ../main.py/..",
]


@pytest.mark.parametrize("args", BAD_ARGS)
def test_a_bad_command_line_returns_one_line_and_leaves_nothing(shared: Live, args: str) -> None:
    answer = shared.submit(args, {"main.py": b"1"})
    assert answer.status == 400 and answer.error[1].startswith("submission."), answer
    assert answer.text.endswith("\n") and answer.text.count("\n") == 1
    assert shared.nothing_left()


@pytest.mark.parametrize(
    "spec",
    [
        {"num_nodes": value} for value in (-1, 0, 10**10, 1.5, True, "１", "x", [], {}, "1.5")
    ] + [
        {"mem": "8g"}, {"mem": {"size": "lots"}}, {"mem": {"size": -1}}, {"gpu": {"num_gpu": -1}}, {"nodes": []},
        {"gpu": 3}, {"name": "big"}, {"id": "x"}, [], "x", 3,
    ],
)
def test_an_invalid_hardware_spec_is_refused(shared: Live, spec: object) -> None:
    args = "--exec-start distPyTorch --model-main main.py"
    answer = shared.submit(args, {"main.py": b"1"}, json.dumps({"hardwareSpec": spec}))
    if spec == []:  # an empty list means the same as no hardware spec
        shared.forget(answer.json()["id"])
        return
    code = "submission.hardware" if isinstance(spec, dict) else "submission.data_part"
    assert answer.error == (400, code) and shared.nothing_left()


@pytest.mark.parametrize(
    "data",
    [
        "{", "[]", "3", "null x", "[" * 100_000, '{"argv": "x"}', '{"argv": [1]}', '{"args": 3}', '{"dataSource": 3}',
        '{"dataSource": [3]}', '{"dataSource": [{}]}', '{"dataSource": [{"type": "connection"}]}',
        '{"dataSource": [{"type": "fs", "location": 3}]}', '{"hardwareSpec": {"num_nodes": NaN}}',
        '{"dataSource": [{"type": "fs", "location": {"paths": [1]}}]}', '{"argv": ["\\u0000"]}',
        '{"argv": ["\\ud800"]}',
        '{"dataSource": [{"type": "fs", "location": {"volume": "../x"}}]}',
        '{"dataSource": [{"type": "fs", "location": {"volume": "absent"}}]}',
        '{"dataSource": [{"type": "fs", "location": {"paths": "../../etc"}}]}',
    ],
)
def test_an_invalid_data_part_is_refused(shared: Live, data: str) -> None:
    args = "" if "argv" in data or '"args"' in data else SINGLE
    answer = shared.submit(args, {"main.py": b"1"}, data)
    codes = {"submission.command", "submission.data_part", "submission.data_source"}
    assert answer.status == 400 and answer.error[1] in codes, answer
    assert shared.nothing_left()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", b"x"),
        ("multipart/form-data; boundary=XbX", b"--XbX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a"),
        ("multipart/form-data; boundary=XbX", b"garbage that is no multipart at all"),
        ("multipart/form-data; boundary=XbX", b"--XbX\r\n" * 3),
        ("multipart/form-data; boundary=XbX", b"--XbX\r\n" + b"X-Long: " + b"y" * 100_000),
        ("multipart/form-data; boundary=XbX", multipart([("file", f"{n}.py", b"") for n in range(100)])[0]),
        ("multipart/form-data; boundary=XbX", multipart([("file", "..", b"")])[0]),
        ("multipart/form-data; boundary=XbX", multipart([("file", "x" * 300, b"")])[0]),
        ("multipart/form-data; boundary=XbX", multipart([("file", "a\x07.py", b"")])[0]),
        ("multipart/form-data; boundary=XbX", multipart([("file", "a.py", b""), ("file", "x/a.py", b"")])[0]),
        ("multipart/form-data; boundary=XbX", multipart([("file", "a.tar", b""), ("file", "b.tar", b"")])[0]),
        ("multipart/form-data; boundary=XbX", multipart([("data", None, b"\xff")])[0]),
        ("application/x-www-form-urlencoded", b"data=%ff"),
        ("text/plain", b"hello"),
    ],
)
def test_an_invalid_body_is_refused(shared: Live, kind: str, body: bytes) -> None:
    answer = shared.call("POST", f"/execs?args={quoted(SINGLE)}", body, {"Content-Type": kind})
    assert answer.status == 400 and answer.error[1].startswith("submission."), answer
    assert shared.nothing_left()


def test_a_missing_upload_or_main_file_is_refused(live: Live) -> None:
    assert live.submit(SINGLE).error == (400, "submission.no_program")
    other, empty = {"a.modelDir.tar": tar({"d/y.py": b""})}, {"a.modelDir.tar": tar({"d/": b""})}
    missing = live.submit("--exec-start PyTorch --model-main x.py", other)
    assert missing.error == (400, "submission.no_program") and "'x.py'" in missing.text
    assert live.submit("--exec-start PyTorch --model-dir d", empty).error == (400, "submission.archive")
    assert live.nothing_left()


def test_an_upload_over_the_limit_is_refused(start) -> None:
    live = start(limits={"upload_bytes": 100_000})
    answer = live.submit(SINGLE, {"main.py": b"x" * 200_000})
    assert answer.error == (413, "submission.too_large") and "100000" in answer.text and live.nothing_left()
    chunked = {"Transfer-Encoding": "chunked"}
    with socket.create_connection(("127.0.0.1", live.port), timeout=60) as raw:
        head = f"POST {wire.EXECS}?args={quoted(SINGLE)} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += f"Authorization: Bearer {TOKEN}\r\nContent-Type: multipart/form-data; boundary=XbX\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in chunked.items()) + "\r\n"
        body = multipart([("file", "main.py", b"x" * 200_000)])[0]
        raw.sendall(head.encode() + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
        assert raw.recv(1000).split()[1] == b"413"
    eventually(live.nothing_left, "no file of the upload is left")


def test_a_client_that_disconnects_leaves_nothing(live: Live) -> None:
    with socket.create_connection(("127.0.0.1", live.port), timeout=60) as raw:
        head = f"POST {wire.EXECS}?args={quoted(SINGLE)} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n"
        head += f"Authorization: Bearer {TOKEN}\r\nContent-Type: multipart/form-data; boundary=XbX\r\n\r\n"
        raw.sendall(head.encode() + multipart([("file", "main.py", b"x" * 3_000_000)])[0][:2_500_000])
        eventually(lambda: not live.nothing_left(), "the upload has begun")
    eventually(live.nothing_left, "no file of the upload is left")
    assert live.call("GET", "/execs").json() == []


def test_a_large_upload_is_stored_exactly(live: Live) -> None:
    content = bytes(range(256)) * 40_000  # 10 MB of all byte values, then partial boundaries
    content += b"\r\n--Xb\r\n--XbX-\r\r\n--" * 1000
    exec_id = live.submitted(files={"main.py": content})
    assert (live.paths(exec_id).submitted / "main.py").read_bytes() == content


def test_secrets_are_used_but_not_displayed(live: Live) -> None:
    args = (
        "--exec-start PyTorch --msd-env USER_ACCESS_TOKEN=abc.def --msd-env 'DB_PASSWORD=a b' --msd-env PLAIN=abc.def "
        "--msd-env=API_KEY=k=1 --cs-url-bearer s3cr3t --jwt-token=tok --password pw --model-main main.py "
        "-- --key visible"
    )
    exec_id = live.submitted(args)
    row = live.row(exec_id)
    vault, variables = Vault(live.settings.paths.vault), row.workload.environment.variables
    env = {name: vault.open_text(value) for name, value in variables.items()}
    assert env == {"USER_ACCESS_TOKEN": "abc.def", "DB_PASSWORD": "a b", "PLAIN": "abc.def", "API_KEY": "k=1"}
    assert "abc.def" not in row.spec + live.paths(exec_id).spec.read_text()
    for secret in ("a b", "k=1", "s3cr3t", "tok ", "pw"):
        assert secret not in row.args, row.args
    assert "USER_ACCESS_TOKEN=***" in row.args and "PLAIN=abc.def" in row.args and "--key visible" in row.args


def test_elastic_training_has_defaults_and_accepts_edt_options(live: Live) -> None:
    spec = live.row(live.submitted("--exec-start edtPyTorch --model-main main.py --edt-options maxWorkers=4")).workload
    assert spec.resources.elastic and spec.resources.num_worker == 4 and spec.program.arguments == ()
    none = "--exec-start edtPyTorch --model-main main.py --edt-options maxWorkers=0"
    assert live.submit(none, {"main.py": b""}).status == 400


@pytest.mark.parametrize("mode", ["exact", "fast", "async"])
def test_the_mode_of_elastic_training_is_kept(live: Live, mode: str) -> None:
    words = f"--model-main main.py --msd-attr mode={mode} --msd-attr other=x"
    program = live.row(live.submitted(f"--exec-start edtPyTorch {words}")).workload.program
    assert program.attributes == {"mode": mode, "other": "x"}


def test_an_unknown_mode_is_refused_for_elastic_training_only(live: Live) -> None:
    words = "--model-main main.py --msd-attr mode=fast --msd-attr mode=Exact"
    answer = live.submit(f"--exec-start edtPyTorch {words}", {"main.py": b""})
    assert answer.error == (400, "submission.resources")
    assert all(word in answer.text for word in ("--msd-attr mode", "'Exact'", "exact, fast, async"))
    assert live.row(live.submitted(f"--exec-start PyTorch {words}")).workload.program.attributes == {"mode": "Exact"}


def test_data_dir_follows_data_sources_and_the_datastore_meta(live: Live, tmp_path) -> None:
    data, volumes = live.settings.data_fs, live.settings.paths.volumes
    for folder in (data / "a", data / "b b", volumes / "demo_project_pvc" / "x", tmp_path / "abs"):
        folder.mkdir(parents=True)
    (data / "out").symlink_to("/etc")

    def answered(meta: str, sources: list[object] | None) -> Answer:
        argv = ["--exec-start", "PyTorch", "--model-main", "main.py", *(["--cs-datastore-meta", meta] if meta else [])]
        data = json.dumps({"argv": argv, "dataSource": sources})
        return live.submit("", {"main.py": b""}, data, headers={wire.PREFER: wire.STRICT})

    def data_dir(meta: str = "", sources: list[object] | None = None) -> str:
        return live.row(answered(meta, sources).json()["id"]).workload.data.data_dir

    assert data_dir() == data_dir("type=fs") == str(data)
    assert data_dir("type=fs,data_path=a") == str(data / "a")
    assert data_dir(f"type=fs,data_path={tmp_path / 'abs'}") == str(tmp_path / "abs")
    assert data_dir("type=fs,data_path=a", [{"type": "fs", "location": {"paths": "b b, a"}}]) == str(data / "b b")
    assert data_dir(sources=[{"type": "fs", "location": {"path": ["a", "b b"]}}]) == str(data / "a")
    assert data_dir(sources=[{"type": "fs"}, {"type": "fs", "location": {"paths": "a"}}]) == str(data)
    volume = {"type": "fs", "location": {"volume": "cpd::demo-project-pvc"}}
    assert data_dir(sources=[volume]) == str(volumes / "demo_project_pvc")
    volume["location"]["paths"] = "x"
    assert data_dir(sources=[volume]) == str(volumes / "demo_project_pvc" / "x")
    for meta, sources, named in (("type=fs,data_path=out", None, "out"),
                                 ("type=fs,data_path=none", None, str(data / "none")),
                                 ("", [{"type": "connection_asset"}], "'connection'")):
        refused = answered(meta, sources)
        assert refused.error == (400, "submission.data_source") and named in refused.text, refused


def test_without_a_data_folder_a_job_has_no_data(live: Live) -> None:
    live.settings.data_fs.rmdir()
    assert live.row(live.submitted()).workload.data.data_dir == ""
    assert live.submit(f"{SINGLE} --cs-datastore-meta type=fs,data_path=x", {"main.py": b""}).status == 400


def test_a_shared_server_refuses_paths_outside_the_data_folder(start, tmp_path) -> None:
    live = start(embedded=False)
    answer = live.submit(f"{SINGLE} --cs-datastore-meta type=fs,data_path={tmp_path}", {"main.py": b""})
    assert answer.error == (400, "submission.data_source") and "DLI_DATA_FS" in answer.text
    live.submitted(f"{SINGLE} --cs-datastore-meta type=fs,data_path={live.settings.data_fs}")


def test_the_servers_own_environment_is_not_given_to_programs(live: Live) -> None:
    row = live.row(live.submitted(f"{SINGLE} --conda-env-name {sys.prefix}"))
    assert row.workload.environment.conda_env is None


def test_a_conda_environment_is_found(live: Live, tmp_path) -> None:
    python = tmp_path / "conda" / "envs" / "mine" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to("/bin/sh")
    home = f"--conda-home {tmp_path / 'conda'}"
    environment = live.row(live.submitted(f"{SINGLE} {home} --conda-env-name mine")).workload.environment
    assert environment.conda_env == str(python.parent.parent)
    assert live.row(live.submitted(f"{SINGLE} --conda-env-name {python.parent.parent}")).workload.environment.conda_env
    assert live.row(live.submitted(f"{SINGLE} {home} --conda-env-name dlipy3")).workload.environment.conda_env is None
    refused = live.submit(f"{SINGLE} {home} --conda-env-name other", {"main.py": b""})
    assert refused.error == (400, "submission.environment") and str(tmp_path / "conda" / "envs") in refused.text


@pytest.mark.parametrize("words", [
    "--conda-env-name ~no-such-account/x", "--conda-home ~no-such-account --conda-env-name x",
])
def test_a_conda_environment_of_no_account_is_refused(live: Live, words: str) -> None:
    assert live.submit(f"{SINGLE} {words}", {"main.py": b""}).error == (400, "submission.environment")


def test_a_boundary_that_is_too_long_is_refused(live: Live) -> None:
    answer = live.call("POST", "/execs", b"--x\r\n", {"Content-Type": f"multipart/form-data; boundary={'x' * 300}"})
    assert answer.error == (400, "submission.body")
