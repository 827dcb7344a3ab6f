"""`dlim debug`: kernels without a server; and the samples and the page that show kernels."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_gateway import FakeGateway
from support import PATIENCE

from local_backend.elastic.api import bundle
from local_backend.inference.kernel import frames

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "samples" / "inference"
PAGE = ROOT / "docs" / "write-a-kernel.md"
pytestmark = pytest.mark.integration


def debug(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "local_backend.inference.kernel.debug", *map(str, words)], text=True,
                          capture_output=True, timeout=PATIENCE, check=False, env={**os.environ, **environment})


def responses(done: subprocess.CompletedProcess[str]) -> list[object]:
    assert done.returncode == 0, done
    return [json.loads(line.removeprefix("Response data: ")) for line in done.stdout.splitlines()]


def test_one_input_makes_a_batch_of_five() -> None:
    done = debug(SAMPLES / "pingpong")
    assert responses(done) == [json.loads((SAMPLES / "pingpong" / "input.json").read_text())] * 5


def test_several_inputs_make_a_batch(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"{number}.json").write_text(json.dumps({"seq": number}))
    done = debug(SAMPLES / "pingpong", "--input", tmp_path / "1.json", tmp_path / "2.json", DLIM_MK_LOG_LEVEL="DEBUG")
    assert responses(done) == [{"seq": 1}, {"seq": 2}]


def test_failures_are_shown(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "pingpong", tmp_path, dirs_exist_ok=True)
    (tmp_path / "broken.json").write_text("{")
    done = debug(tmp_path, "--input", tmp_path / "broken.json")
    assert done.returncode == 1 and done.stdout.count("Failed: ") == 5 and "Traceback" in done.stderr
    (tmp_path / "kernel.py").write_text("from redhareapi import Kernel\nclass Silent(Kernel): pass\n")
    done = debug(tmp_path)
    assert done.returncode == 1 and done.stdout.count("No response") == 5
    for words in ((tmp_path / "gone",), (tmp_path, "--input", tmp_path / "gone"), (tmp_path, "--kernel-type", "x")):
        done = debug(*words)
        assert done.returncode == 2 and "Traceback" not in done.stderr


def test_the_kernel_of_the_page(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, language in (("kernel.py", "python"), ("model.json", "json")):
        block = re.findall(rf"`{re.escape(name)}`:\n\n```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]
        (tmp_path / name).write_text(block)
    (tmp_path / "input.json").write_text('{"data": "ping"}')
    assert responses(debug(tmp_path)) == [{"data": "ping"}] * 5


def test_the_sample_digits_serves_weights(tmp_path: Path) -> None:
    """With its kernel, and with the ready-made one."""
    shutil.copytree(SAMPLES / "digits", tmp_path, dirs_exist_ok=True)
    sys.path.insert(0, str(tmp_path))
    try:
        from network import Net
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("network", None)
    torch.manual_seed(3)
    model = Net().eval()
    torch.save(model.state_dict(), tmp_path / "model_epoch_final.pth")
    images = torch.rand(3, 8, 8)
    with torch.inference_mode():
        scores = model(images.reshape(3, 1, 8, 8))
    for number, part in enumerate((images[:2], images[2:])):
        (tmp_path / f"{number}.json").write_text(json.dumps({"instances": part.tolist()}))
    inputs = ("--input", tmp_path / "0.json", tmp_path / "1.json")
    first, second = responses(debug(tmp_path, *inputs))
    assert first["predictions"]["digits"] == scores[:2].argmax(1).tolist()  # type: ignore[index]
    assert np.allclose(second["predictions"]["probabilities"], scores[2:].softmax(1), atol=1e-5)  # type: ignore[index]
    first, second = responses(debug(tmp_path, *inputs, "--kernel-type", "torch"))
    assert np.allclose(first["predictions"] + second["predictions"], scores, atol=1e-5)  # type: ignore[index]
    (tmp_path / "bad.json").write_text('{"instances": [[1]]}')
    done = debug(tmp_path, "--input", tmp_path / "bad.json", tmp_path / "0.json")
    assert done.stdout.startswith("Failed: ") and "Response data: " in done.stdout


def test_kernels_run_in_any_python_environment(gateway: FakeGateway, tmp_path: Path) -> None:
    """FABRIC_HOME has all that they need; -S leaves out installed packages."""
    bundle.build(tmp_path)
    kernel = (SAMPLES / "pingpong" / "kernel.py").read_text()
    gateway.start(kernel, command=[sys.executable, "-S", "-m", "local_backend.inference.kernel.main"],
                  env={"PYTHONPATH": str(tmp_path / "libs" / "fabric.zip")})
    side = gateway.accept()
    side.greet()
    assert side.ask('{"seq": 1}') == ['{"seq": 1}']
    side.socket.sendall(frames.frame(frames.BYE))
