"""Programs with several processes that form one group: gloo and torchrun."""

from __future__ import annotations

import textwrap

import pytest
from runtime_support import Bench

from dlicmd.contract.states import FINISHED

pytestmark = pytest.mark.integration

ALL_REDUCE = """
    import sys
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    # One write: with PYTHONUNBUFFERED the pieces of a print would mix with those of the other process.
    sys.stdout.write(f"{dist.get_rank()} {dist.get_world_size()} {value.item()}\\n")
    dist.destroy_process_group()
"""


def test_two_workers_reduce_over_gloo(warm: Bench) -> None:
    one = warm.submit(textwrap.dedent(ALL_REDUCE), framework="distPyTorch", num_worker=2)
    row = warm.wait(one)
    assert row.state == FINISHED, warm.output(one, "stderr") + warm.output(one, "stderr", "task12n-2")
    assert warm.output(one) == "0 2 3.0\n"
    assert warm.output(one, task="task12n-2") == "1 2 3.0\n"


def test_a_command_can_start_processes_with_torchrun(warm: Bench) -> None:
    words = ("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "main.py")
    one = warm.submit(textwrap.dedent(ALL_REDUCE), user_cmd=words, device_num=2)
    row = warm.wait(one)
    assert row.state == FINISHED, warm.output(one, "stderr")
    assert sorted(warm.output(one).splitlines()) == ["0 2 3.0", "1 2 3.0"]


def test_torchrun_reads_its_node_from_the_environment(warm: Bench) -> None:
    script = """\
        #!/bin/bash
        exec python -m torch.distributed.run --nnodes=$WMLA_NWORKER --nproc-per-node=$WMLA_WORKER_NDEVICE \\
            --node-rank=$NODE_RANK --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT main.py
    """
    # Each torchrun waits for the other one before it starts its program.
    program = "import os\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'], os.environ['MASTER_PORT'])\n"
    files = {"main.py": program, "go.sh": textwrap.dedent(script)}
    one = warm.submit(files, user_cmd=("go.sh",), framework="distPyTorch", num_worker=2)
    row = warm.wait(one)
    assert row.state == FINISHED, warm.output(one, "stderr") + warm.output(one, "stderr", "task12n-2")
    first, second = warm.output(one).split(), warm.output(one, task="task12n-2").split()
    assert (first[:2], second[:2]) == (["0", "2"], ["1", "2"]) and first[2] == second[2]
