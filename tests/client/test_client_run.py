"""`Client.run`: programs are submitted as the verb `run` submits them."""

from __future__ import annotations

from typing import Any

import pytest
from client_desk import Desk
from fake_server import TOKEN, FakeServer

import dlicmd

ELASTIC, SINGLE = "from fabric_model import FabricModel\n", "print(1)\n"
DDP, SEVERAL = "import os\nrank = os.environ['RANK']\n", "import lightning\n"
#: Programs that start the processes of their training themselves, and one that a launcher may also start.
SPAWNS = (
    "import torch.multiprocessing as mp\nfrom torch.distributed import init_process_group\nmp.spawn(main, nprocs=2)\n",
    "import torch\ntorch.distributed.init_process_group()\ntorch.multiprocessing.spawn(main)\n",
    "from torch import multiprocessing\nimport torch.distributed as d\nd.init_process_group()\n"
    "multiprocessing.Process(target=main)\n",
    "from torch.multiprocessing import spawn\nfrom torch.nn.parallel import DistributedDataParallel\nspawn(main)\n",
)
#: Programs of Lightning that use the workers of a job, and those that train in one process or start others themselves.
NODES = (
    "import lightning as L\nL.Trainer(num_nodes=2, devices=1, strategy='ddp')\n",
    "from pytorch_lightning import Trainer\nTrainer(**options)\n",
    "from lightning.pytorch.cli import LightningCLI\nLightningCLI(Model)\n",
    "import ignite.distributed as idist\nidist.Parallel(backend='gloo')\n",
)
ONE_NODE = (
    "import lightning as L\nL.Trainer(max_epochs=3).fit(model)\n",
    "from lightning.fabric import Fabric\nFabric(devices=2, strategy='ddp')\n",
)
EITHER = SPAWNS[0] + "import os\nrank = os.environ['RANK']\n"


@pytest.fixture
def client(fake: FakeServer) -> dlicmd.Client:
    return dlicmd.Client("127.0.0.1", fake.port, http=True, token=TOKEN)


def test_a_run_in_a_pipe_says_what_it_does_beside_the_id(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    program = desk.model(train=SINGLE) / "train.py"
    done = desk.run("run", str(program), *remote)
    assert (done.code, done.out) == (0, "wmla-1\n")
    assert "dlicmd follow wmla-1" in done.err
    done = desk.run("run", str(program), *remote, "-o", "json")
    assert "follow" not in done.err, "programs that read JSON know the id"


def submitted(fake: FakeServer) -> str:
    return fake.requests("POST")[-1].query["args"][0]


@pytest.mark.parametrize(("source", "words", "named"), [
    (SINGLE, [], {}), (ELASTIC, [], {}), (DDP, [], {}), (SEVERAL, [], {}),
    (SEVERAL, ["--workers", "3"], {"workers": 3}),
    (ELASTIC, ["--gpus", "2", "--allow-cpu"], {"gpus": 2, "allow_cpu": True}),
    (SINGLE, ["--as", "ddp", "--workers", "2"], {"kind": "ddp", "workers": 2}),
    (SINGLE, ["--as", "command"], {"kind": "command"}),
    (SINGLE, ["--as", "command", "--workers", "2"], {"kind": "command", "workers": 2}),
    (DDP, ["--as", "single", "--name", "x y"], {"kind": "single", "name": "x y"}),
    (SINGLE, ["--data", "mnist"], {"data": "mnist"}), (SINGLE, ["--env", "A=1"], {"env": {"A": 1}}),
    (SINGLE, ["--", "--epochs", "2"], {"arguments": ["--epochs", 2]}),
])
def test_client_and_command_line_submit_the_same(
    client: dlicmd.Client, fake: FakeServer, desk: Desk, remote: list[str], *, source: str, words: list[str],
    named: dict[str, Any],
) -> None:
    fake.conf["DLICMD_EXTENSIONS"] = "allow-cpu"
    program = desk.model(train=source) / "train.py"
    at = words.index("--") if "--" in words else len(words)
    done = desk.run("run", str(program), *words[:at], *remote, "--no-follow", *words[at:])
    assert done.code == 0, done.err
    typed = submitted(fake)
    client.run(program, **named)

    def parts(line: str) -> tuple[list[str], str]:
        """Return the options in the order of their names, and the words of the program."""
        options, _, after = line.partition(" -- ")
        return sorted(options.split(" --")), after

    assert parts(submitted(fake)) == parts(typed)


@pytest.mark.parametrize("source", SPAWNS)
def test_a_program_that_starts_its_processes_itself_starts_once(
    fake: FakeServer, desk: Desk, remote: list[str], source: str,
) -> None:
    setup = "from torch.distributed import init_process_group\n"
    program = desk.model(train=f"import helper\n{setup}", helper=source) / "train.py"
    for options in ([], ["--workerDeviceNum", "2"]):
        done = desk.run("run", str(program), *remote, *options, "--no-follow")
        assert done.code == 0 and "--exec-start PyTorch" in submitted(fake)
        assert "runs as 1 process: it imports helper.py, which starts the processes of its training" in done.err
        assert "; for several devices: --workerDeviceNum N" in done.err
    refused = desk.run("run", str(program), "--workers", "2", *remote, "--no-follow")
    assert refused.code == 2 and "For 2 devices in 1 process: --workerDeviceNum 2" in refused.err


@pytest.mark.parametrize("source", [EITHER, SPAWNS[0].replace("torch.multiprocessing", "multiprocessing")])
def test_a_program_that_a_launcher_can_start_runs_once_for_each_worker(
    fake: FakeServer, desk: Desk, remote: list[str], source: str,
) -> None:
    program = desk.model(train=source) / "train.py"
    assert desk.run("run", str(program), *remote, "--workers", "2", "--no-follow").code == 0
    assert "--exec-start distPyTorch" in submitted(fake)


@pytest.mark.parametrize("source", NODES)
def test_a_library_whose_nodes_are_workers_runs_on_several_workers(
    fake: FakeServer, desk: Desk, remote: list[str], source: str,
) -> None:
    program = desk.model(train=source) / "train.py"
    assert desk.run("run", str(program), *remote, "--workers", "2", "--no-follow").code == 0
    assert "--exec-start distPyTorch" in submitted(fake)
    assert desk.run("run", str(program), *remote, "--no-follow").code == 0
    assert "--exec-start PyTorch" in submitted(fake)


@pytest.mark.parametrize("source", ONE_NODE)
def test_a_trainer_without_num_nodes_is_not_started_by_several_workers(
    fake: FakeServer, desk: Desk, remote: list[str], source: str,
) -> None:
    program = desk.model(train=source) / "train.py"
    refused = desk.run("run", str(program), *remote, "--workers", "2", "--no-follow")
    assert refused.code == 2 and "num_nodes" in refused.err and not fake.requests("POST")
    assert desk.run("run", str(program), *remote, "--workers", "2", "--as", "ddp", "--no-follow").code == 0
    assert "--exec-start distPyTorch" in submitted(fake)
    done = desk.run("run", str(program), *remote, "--no-follow")
    assert done.code == 0 and "--exec-start PyTorch" in submitted(fake) and "--workerDeviceNum N" in done.err


def test_a_folder_and_a_text_are_programs(client: dlicmd.Client, fake: FakeServer, desk: Desk) -> None:
    desk.model(train=SINGLE, other=SINGLE)
    for program in (desk.folder / "model", str(desk.folder / "model")):
        job = client.run(program, options={"exclusive": True})
        assert isinstance(job, dlicmd.Job) and "--exclusive" in submitted(fake)
        assert "--model-main train.py" in submitted(fake)


@pytest.mark.parametrize(("source", "named", "expected"), [
    (SINGLE, {"workers": 2}, "kind='ddp'"), (SINGLE, {"kind": "mpi"}, "kind"), ("def", {}, "kind"),
    (SINGLE, {"arguments": "--epochs 2"}, "arguments"), (SINGLE, {"workers": 0}, "numWorker"),
    (SINGLE, {"options": {"wait": True}}, "wait"), (SINGLE, {"data": "{"}, "data"),
])
def test_a_mistake_is_refused_before_anything_is_sent(
    client: dlicmd.Client, fake: FakeServer, desk: Desk, *, source: str, named: dict[str, Any], expected: str
) -> None:
    program = desk.model(train=source) / "train.py"
    with pytest.raises(dlicmd.UsageProblem) as raised:
        client.run(program, **named)
    assert expected in str(raised.value) and not fake.requests("POST")


@pytest.mark.parametrize(("name", "content", "mode", "command"), [
    ("run.sh", "echo 1\n", 0o600, "bash run.sh"), ("run.sh", "echo 1\n", 0o700, "bash run.sh"),
    ("run.sh", "#!/bin/sh\necho 1\n", 0o700, "./run.sh"), ("script", "echo 1\n", 0o700, "sh script"),
    ("binary", "\x7fELF\0", 0o700, "./binary"),
])
def test_a_script_runs_as_in_a_shell(  # noqa: PLR0917
    client: dlicmd.Client, fake: FakeServer, desk: Desk, name: str, content: str, mode: int, command: str
) -> None:
    program = desk.model(train=SINGLE) / name
    program.write_text(content)
    program.chmod(mode)
    client.run(program)
    assert submitted(fake).endswith(f"--user-cmd -- {command}")


def test_a_missing_program_is_named_with_the_folder_of_others(client: dlicmd.Client, desk: Desk) -> None:
    folder = desk.model(train=SINGLE, other=SINGLE)
    for path, said in ((folder / "xyz", f"the Python files in {folder} are other.py, train.py"),
                       (folder.parent / "xyz", f"{folder.parent} has no Python file"),
                       (folder / "no" / "xyz", f"no folder {folder / 'no'}")):
        with pytest.raises(dlicmd.UsageProblem, match=said):
            client.run(path)


@pytest.mark.parametrize("name", ["trian.py", "notes.ipynb", "job.yaml", "data.bin", "empty"])
def test_what_is_no_program_is_refused(client: dlicmd.Client, fake: FakeServer, desk: Desk, name: str) -> None:
    folder = desk.model(train=SINGLE)
    (folder / "empty").mkdir()
    for other in ("notes.ipynb", "job.yaml", "data.bin"):
        (folder / other).write_text("")
    with pytest.raises(dlicmd.UsageProblem) as raised:
        client.run(folder / name)
    assert "--" not in str(raised.value) and not fake.requests("POST")


def test_a_command_without_dashes_is_repaired(desk: Desk) -> None:
    (desk.folder / "other.py").write_text(SINGLE)
    tool = desk.folder / "bin" / "mytool"
    tool.parent.mkdir()
    tool.write_text("")
    tool.chmod(0o700)
    desk.environment["PATH"] = f"{tool.parent}:{desk.environment['PATH']}"
    for words, meant in ((["mytool"], "-- mytool"), (["mytool", "--", "--x", "1"], "-- mytool --x 1")):
        done = desk.run("run", *words)
        assert done.code == 2 and done.err.rstrip().endswith(f": dlicmd run {meant}")


def test_a_command_needs_no_files(desk: Desk, fake: FakeServer, remote: list[str]) -> None:
    words = ("run", *remote, "--no-follow", "--", "pip", "install", "x")
    (desk.folder / "other.py").write_text(SINGLE)
    for home in (desk.folder, desk.home):
        desk.environment["HOME"] = str(home)
        done = desk.run(*words)
        assert done.code == 0 and f"no files of {desk.folder} are sent" in done.err and "packed" not in done.err
        assert submitted(fake).endswith("--user-cmd -- pip install x") and "--model-dir" not in submitted(fake)
        (desk.folder / "other.py").unlink(missing_ok=True)
    (desk.folder / "requirements.txt").write_text("x\n")
    assert desk.run(*words).code == 0 and "--model-dir" in submitted(fake)
