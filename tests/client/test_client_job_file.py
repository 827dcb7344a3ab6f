"""Job files: a file means the same as its words on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from client_desk import Desk
from fake_server import FakeServer

DOCS = Path(__file__).parent.parent.parent / "docs"


def write(desk: Desk, text: str | bytes, name: str = "job.yaml") -> None:
    path = desk.folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def sent(server: FakeServer) -> str:
    [seen] = server.requests("POST", "/execs/")
    [args] = seen.query["args"]
    return args


def data(server: FakeServer) -> dict:
    [seen] = server.requests("POST", "/execs/")
    found = re.search(rb'name="data"\r\n\r\n(.*?)\r\n--', seen.body, re.DOTALL)
    return json.loads(found[1]) if found else {}


def test_the_example_of_the_documentation_works(desk: Desk, local: FakeServer) -> None:
    page = (DOCS / "job-file.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    [commands] = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    write(desk, example)
    desk.model()
    (desk.folder / "data").mkdir()
    first, second = commands.splitlines()
    done = desk.run(*first.split()[1:])
    assert done.code == 0, done
    assert sent(local) == (
        "--exec-start edtPyTorch --model-dir model --model-main train.py --numWorker 4 --workerMemory 8g "
        f"--cs-datastore-meta type=fs,data_path={desk.folder}/data --msd-env NCCL_DEBUG=INFO "
        "--msd-env OMP_NUM_THREADS=2 --msd-attr minWorkers=2 -- --epochs 10 --lr 0.05 --amp")
    local.seen.clear()
    done = desk.run(*[word for word in second.split()[1:] if word != "--follow"])
    assert done.code == 0, done
    assert "--numWorker 2" in sent(local) and "--numWorker 4" not in sent(local)
    assert sent(local).endswith("-- --lr 0.05 --amp --epochs 20")


def test_the_command_line_overrides_the_file(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    write(desk, "framework: PyTorch\nuser-cmd: true\nappName: one\nmsd-env: {A: 1, B: 2}\nargs: [echo, a b]\n")
    done = desk.run("--exec-start", "distPyTorch", "--file=job.yaml", "--appName", "two", "--msd-env", "B=3", *remote,
                    "--", "-f", "job.yaml")
    assert done.code == 0, done
    assert sent(fake) == "--exec-start distPyTorch --appName two --msd-env B=3 --user-cmd --msd-env A=1 " \
                         "-- echo 'a b' -f job.yaml"


def test_paths_are_relative_to_the_file(desk: Desk, local: FakeServer) -> None:
    (desk.folder / "jobs" / "data").mkdir(parents=True)
    desk.model("jobs/model")
    (desk.folder / "jobs" / "env.yaml").write_text("name: x\n")
    write(desk, "framework: PyTorch\nmodel-dir: model\nmodel-main: train.py\nconda-env-yaml: env.yaml\n"
                "data-source:\n- {type: fs, location: {paths: ./data}}\n- {type: fs, location: {paths: mnist}}\n",
          "jobs/job.yml")
    done = desk.run("--exec-start", "-f", "jobs/job.yml")
    assert done.code == 0, done
    paths = [source["location"]["paths"] for source in data(local)["dataSource"]]
    assert paths == [str(desk.folder / "jobs" / "data"), "mnist"]
    assert "--model-dir model --model-main train.py" in sent(local)


def test_a_single_program_is_relative_to_the_file(desk: Desk, local: FakeServer) -> None:
    desk.model("jobs")
    write(desk, "framework: PyTorch\nmodel-main: train.py\n", "jobs/job.yaml")
    assert desk.run("--exec-start", "-f", "jobs/job.yaml").code == 0
    assert sent(local) == "--exec-start PyTorch --model-main jobs/train.py"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("{lr: -1, x: [1, 2], off: false, -v: true, s: 'a b'}", "--lr=-1 --x 1 2 -v --s 'a b'"),
        ("[0123, yes, '--', -f]", "0123 yes -- -f"), ("[]", None), ("{}", None),
    ],
)
def test_args_become_words_of_the_program(desk: Desk, local: FakeServer, args: str, words: str | None) -> None:
    desk.model()
    write(desk, f"framework: PyTorch\nmodel-main: model/train.py\nargs: {args}\n")
    done = desk.run("--exec-start", "-f", "job.yaml")
    assert done.code == 0, done
    assert sent(local) == "--exec-start PyTorch --model-main model/train.py" + (f" -- {words}" if words else "")


def test_the_option_f_of_the_program_goes_to_the_program(desk: Desk, local: FakeServer) -> None:
    desk.model()
    write(desk, "this is no job file", "config.json")
    start = ["--exec-start", "PyTorch", "--model-main", "model/train.py"]
    for words in (["-f", "config.json"], ["-f", "missing.yaml"], ["--", "-f", "job.yaml"], ["--file", "x.csv"], ["-f"]):
        local.seen.clear()
        write(desk, "nonsense: 1")
        done = desk.run(*start, *words)
        assert done.code == 0, done
        assert sent(local) == " ".join([*start, *words])
        assert ("missing.yaml" in done.err) == ("missing.yaml" in words)


def test_a_job_file_is_only_for_submissions(desk: Desk, local: FakeServer) -> None:
    write(desk, "framework: PyTorch\n")
    done = desk.run("--exec-get-all", "-f", "job.yaml")
    assert done.code == 2 and "'-f'" in done.err


def test_a_mistyped_option_is_reported_once(desk: Desk, local: FakeServer) -> None:
    write(desk, "framework: PyTorch\nuser-cmd: true\nargs: ['true']\n")
    done = desk.run("--exec-start", "-f", "job.yaml", "--folow")
    assert done.code == 0 and done.err.count("--follow?") == 1


BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nnumWorker: *b\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("framework: PyTorch\n\nnumWorkers: 3\n", "line 3: unknown option 'numWorkers'; did you mean numWorker?"),
        ("framework: PyTorch\nnumWorker: many\n", "line 2: numWorker: 'many'"),
        ("numWorker: [1, 2]\n", "line 1: numWorker "), ("numWorker: {a: 1}\n", "line 1: numWorker "),
        ("numWorker:\n", "line 1: numWorker "), ("numWorker: 1\nnumWorker: 2\n", "line 2: 'numWorker'"),
        ("workerDeviceNum: 1\ngpuPerWorker: 2\n", "line 2: 'gpuPerWorker' means --workerDeviceNum"),
        ("user-cmd: 3\n", "line 1: user-cmd must be true or false"), ("password: x\n", "line 1: 'password'"),
        ("exec-stop: x\n", "'exec-stop'"), ("data-source: mnist\n", "data-source"),
        ("data-source: [{type: fs, location: {paths: a, paths: b}}]\n", "'paths'"),
        ("data-source: [{type: fs, when: 2020-01-01}]\n", "JSON"),
        ("data-source: [{type: !!python/name:os.system x}]\n", "not a text, number"),
        ("args: --epochs 10\n", "args"), ("args: {a: {b: 1}}\n", "args: a "), ("framework: -x\n", "'-x'"),
        ("model-main: x.py\n", "'framework: NAME'"), ("- a\n", "line 1: a job file needs lines of 'name: value'"),
        ("", "empty"), ("a: [\n", "invalid YAML"), (b"a: \xff\n", "invalid YAML"), ("[" * 9000, "invalid YAML"),
        (BOMB, "aliases"), ('appName: "a\\0"\n', "not text"), ('appName: "\\ud800"\n', "not text"),
        ("a: 1\n---\nb: 1\n", "invalid YAML"), ("# " + "x" * 300_000, "256 KiB"),
        ("\x1b]0;x\x07: 1\n", "invalid YAML"), ('"\\e]0;x\\a\\nB": 1\n', "unknown option"),
    ],
)
def test_a_wrong_job_file_is_reported_in_one_line(desk: Desk, local: FakeServer, text: str | bytes, said: str) -> None:
    write(desk, text)
    done = desk.run("--exec-start", "-f", "job.yaml")
    assert done.code == 2, done
    assert said in done.err and "job.yaml" in done.err
    assert done.err.count("\n") == 1 and "\x1b" not in done.err and "Traceback" not in done.err
    assert not local.requests("POST")


def test_a_missing_or_repeated_job_file_is_reported(desk: Desk, local: FakeServer) -> None:
    write(desk, "framework: PyTorch\n")
    for words, said in (
        (["-f", "none.yaml"], "-f none.yaml: the file does not exist"),
        (["-f", "x" * 5000 + ".yaml"], "the file does not exist"),
        (["PyTorch", "--file", "none.yml"], "--file none.yml: the file does not exist"),
        (["-f", "job.yaml", "--file", "job.yaml"], "give only 1 job file"),
        (["-f", "job.yaml", "--numWorker", "x"], "--numWorker: 'x' is not a whole number"),
    ):
        done = desk.run("--exec-start", *words)
        assert done.code == 2 and said in done.err and done.err.count("\n") == 1, done
