"""A program cannot tell how it was started: forked from the nursery, in a new process, or with `python main.py`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from runtime_support import Bench
from support import eventually

from dlicmd.contract.states import ERROR, FINISHED

RAISES = """
import json

def deep(n):
    if n == 0:
        try:
            {}["k"]
        except KeyError:
            raise ValueError("two\\nlines")
    deep(n - 1)

if __name__ == "__main__":
    print("before")
    deep(3)
"""
PROGRAMS = {
    "raises": RAISES,
    "syntax error": "x = 1\ny = = 2\n",
    "missing module": "import no_such_module\n",
    "exit text": "import sys\nprint('out')\nsys.exit('this is why')\n",
    "exit code": "import sys\nsys.exit(7)\n",
    "exit none": "import sys\nsys.exit()\n",
    "full output": "import sys\nsys.stdout = open('/dev/full', 'w')\nprint('lost')\n",
    "own excepthook": """
        import sys
        sys.excepthook = lambda kind, problem, trace: print("hook", kind, problem, trace.tb_frame.f_code.co_name)
        1/0
    """,
    "interrupted": "raise KeyboardInterrupt\n",
    "in a thread": "import threading\nt = threading.Thread(target=lambda: 1/0, name='t')\nt.start()\nt.join()\n",
    "at exit": """
        import atexit, threading, time
        atexit.register(print, "atexit")
        def late():
            time.sleep(0.2)
            print("thread")
        threading.Thread(target=late).start()
        kept = open("kept.txt", "w")
        kept.write("not flushed by hand")
        print("main ends")
    """,
    "objects of modules": """
        import sys
        import held
        class Loud:
            def __init__(self, name):
                self.name = name
            def __del__(self):
                print("removed", self.name)
        def use():
            return first
        first, second = Loud("first"), Loud("second")
        held.loud = Loud("of a module")
        sys.held_for_ever = use
        print("main ends")
        sys.exit(3)
    """,
    "replaced output": """
        import sys
        print("before")
        sys.stdout = open("kept.txt", "w")
        print("not flushed by hand", end="")
    """,
    "output of C": """
        import ctypes
        print("Python", flush=True)
        ctypes.CDLL(None).printf(b"C\\n")
    """,
    "daemon thread": """
        import threading, time
        def work():
            started.set()
            time.sleep(60)
        started = threading.Event()
        threading.Thread(target=work, daemon=True).start()
        started.wait()
        print("main ends")
    """,
    "exception group": "raise ExceptionGroup('many', [ValueError(1), TypeError(2)])\n",
    "chained": "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('second') from e\n",
    "names": """
        import sys, __main__
        print(sorted(n for n in globals() if n != "__cached__"), __name__, __file__, __spec__, __package__, __doc__)
        print(type(__loader__).__name__, sys.modules["__main__"].__dict__ is globals(), __builtins__)
        print(sys.argv, sys.path[0], sys.stdin.read(), sys.stdout.encoding, sys.stderr.errors, sys.stdout.name)
        print(sys.stdout.write_through, sys.stdout.line_buffering, type(sys.stdout.buffer).__name__)
    """,
    "signals": """
        import signal
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD, signal.SIGHUP):
            print(number, signal.getsignal(number))
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    """,
    "spawn": """
        import multiprocessing
        def square(x):
            return x * x
        if __name__ == "__main__":
            for method in ("spawn", "fork"):
                with multiprocessing.get_context(method).Pool(2) as pool:
                    print(pool.map(square, [1, 2, 3]))
    """,
    "helper": "import helper\nprint(helper.__file__)\nhelper.fail()\n",
    "descriptors": "import os\nprint(sorted(os.listdir('/proc/self/fd'))[:4])\n",
}
FILES = {"helper.py": "def fail():\n    raise OSError(5, 'from the helper')\n", "held.py": ""}


def plain(bench: Bench, exec_id: str, code: Path) -> subprocess.CompletedProcess[str]:
    """Run the same program in the same folder as a user would, without the backend."""
    env = {**os.environ, "PYTHONUNBUFFERED": "x", "PYTHONPATH": str(code)}
    return subprocess.run(
        [sys.executable, str(code / "main.py"), "a b"], cwd=code, env=env, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=120, check=False,
        # Restore the defaults of a terminal: under `nohup` or a shell's `&` the tests inherit ignored signals.
        preexec_fn=lambda: [signal.signal(one, signal.SIG_DFL) for one in (signal.SIGHUP, signal.SIGINT)],
    )


@pytest.fixture(params=["warm", "cold"])
def any_bench(request: pytest.FixtureRequest) -> Bench:
    found: Bench = request.getfixturevalue(request.param)
    return found


@pytest.mark.integration
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_behaves_as_under_plain_python(any_bench: Bench, name: str) -> None:
    if name == "exception group" and sys.version_info < (3, 11):
        pytest.skip("no exception groups before Python 3.11")
    text = textwrap.dedent(PROGRAMS[name])
    one = any_bench.submit({"main.py": text, **FILES}, arguments=("a b",))
    row = any_bench.wait(one)
    code = any_bench.paths(one).code(row.workload)
    kept = (code / "kept.txt").read_text() if (code / "kept.txt").exists() else None
    expected = plain(any_bench, one, code)
    assert any_bench.output(one, "stderr") == expected.stderr
    assert any_bench.output(one) == expected.stdout
    if kept is not None:
        assert kept == (code / "kept.txt").read_text() == "not flushed by hand"
    status = expected.returncode if expected.returncode >= 0 else 128 - expected.returncode
    assert (row.state, row.exit_code) == (FINISHED if status == 0 else ERROR, status)


PROBE = """
import json, os, sys
import multiprocessing.spawn, site, sysconfig
UNIQUE = ("MASTER_PORT", "DLI_RUN_MARK", "JOB_UUID", "MSD_MK_ID", "TMPDIR")
import torch
path = [entry for entry in sys.path if "batchworkdir" not in entry]
names = {k: v for k, v in os.environ.items() if "local-" not in v and k not in UNIQUE}
print(json.dumps([names, path, sys.argv[1:], torch.get_num_threads(), sys.flags.no_site, os.getpgid(0) == os.getpid(),
                  os.getcwd() == os.environ["DLI_WORK_DIR"] == os.environ["PWD"], sorted(os.listdir(".")),
                  sys.executable, sys.prefix, sys.base_prefix, site.ENABLE_USER_SITE, site.getusersitepackages(),
                  site.getsitepackages(), sysconfig.get_paths(), str(multiprocessing.spawn.get_executable())]))
"""


@pytest.mark.integration
def test_a_warm_and_a_cold_start_give_the_same_environment(warm: Bench) -> None:
    eventually(lambda: nursery_state(warm) == "ready", "the nursery is ready")
    seen = []
    for extra in ({}, {"OMP_SCHEDULE": "static"}):
        one = warm.submit(PROBE, variables={"EPOCHS": "3", **extra}, arguments=("x",))
        assert warm.wait(one).state == FINISHED, warm.output(one, "stderr")
        assert ("python/bin/python" in warm.launcher_log(one)) is bool(extra)
        names, *rest = json.loads(warm.output(one))
        names.pop("OMP_SCHEDULE", None)
        seen.append((names, rest))
    assert seen[0] == seen[1]


def nursery_state(bench: Bench) -> object:
    return bench.supervisor.status()["nursery"]["state"]  # type: ignore[attr-defined]


def test_a_module_of_the_program_wins_over_one_loaded_by_the_nursery(warm: Bench) -> None:
    eventually(lambda: nursery_state(warm) == "ready", "the nursery is ready")
    files = {"main.py": "import psutil\nprint(psutil.MINE)\n", "psutil.py": "MINE = 'mine'\n"}
    one = warm.submit(files)
    assert warm.wait(one).state == FINISHED, warm.output(one, "stderr")
    assert warm.output(one) == "mine\n"


def test_random_numbers_differ_between_jobs(warm: Bench) -> None:
    eventually(lambda: nursery_state(warm) == "ready", "the nursery is ready")
    numbers = "random.random(), numpy.random.rand(), torch.rand(1).item(), uuid.uuid4()"
    program = f"import random, numpy, torch, uuid\nprint({numbers})\n"
    ids = [warm.submit(program) for _ in range(2)]
    assert all(warm.wait(one).state == FINISHED for one in ids)
    first, second = (warm.output(one).split() for one in ids)
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_a_data_loader_with_workers_runs_in_a_forked_program(warm: Bench) -> None:
    program = """
        import torch
        from torch.utils.data import DataLoader, TensorDataset
        if __name__ == "__main__":
            data = TensorDataset(torch.arange(64.).reshape(16, 4))
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
            for (batch,) in DataLoader(data, batch_size=4, num_workers=2):
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
            print("trained", torch.get_num_threads())
    """
    one = warm.submit(textwrap.dedent(program), arguments=())
    row = warm.wait(one)
    assert row.state == FINISHED, warm.output(one, "stderr")
    assert warm.output(one).startswith("trained")


WEIGHTS_ONLY = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "0"}


@pytest.mark.integration
@pytest.mark.parametrize(("variables", "expected"), [({}, FINISHED), (WEIGHTS_ONLY, ERROR)])
def test_torch_load_reads_python_objects_unless_the_job_forbids_it(
    warm: Bench, variables: dict[str, str], expected: str,
) -> None:
    job = warm.submit(textwrap.dedent("""
        import argparse, torch
        torch.save({"args": argparse.Namespace(lr=0.1), "model": torch.nn.Linear(1, 1)}, "whole.pt")
        print(torch.load("whole.pt")["args"].lr)
    """), variables=variables)
    assert warm.wait(job).state == expected
