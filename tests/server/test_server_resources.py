"""Devices, memory and workers that submissions request (contract, sections 4.4 and 5.5)."""

from __future__ import annotations

import json

import pytest
from live_server import Live

MAIN = "--model-main main.py"


def spec(live: Live, words: str, framework: str = "PyTorch", **hardware):
    data = json.dumps({"hardwareSpec": hardware})
    return live.row(live.submitted(f"--exec-start {framework} {MAIN} {words}", data=data)).workload


def refusal(live: Live, words: str, framework: str = "PyTorch", **hardware) -> tuple[str, str]:
    """Submit a job that the server must refuse; return the code and the text of the error."""
    data = json.dumps({"hardwareSpec": hardware})
    answer = live.submit(f"--exec-start {framework} {MAIN} {words}", {"main.py": b""}, data)
    assert answer.status == 400
    return answer.error[1], answer.text


@pytest.mark.parametrize(
    ("words", "number", "share"),
    [("", 1, 1.0), ("--workerDeviceNum 2", 2, 1.0), ("--workerDeviceNum 0.5", 1, 0.5), ("--gpuPerWorker 1", 1, 1.0),
     ("--workerDeviceNum .25", 1, 0.25)],
)
def test_a_worker_gets_whole_devices_or_a_part_of_one(live: Live, words, number, share) -> None:
    asked = spec(live, words).resources
    assert (asked.device_num, asked.device_share, asked.shares) == (number, share, share < 1)


def test_keys_of_a_hardware_spec_without_effect_are_named(live: Live) -> None:
    nodes = {"num_nodes": 1, "cpu": {"units": "0.25"}, "num_drivers": "1", "drivers": {"mem": {"size": "4Gi"}},
             "gpus": 1}
    data = json.dumps({"hardwareSpec": {"nodes": nodes}})
    answer = live.submit(f"--exec-start PyTorch {MAIN}", {"main.py": b""}, data)
    assert answer.status == 200
    told = answer.json()["warning"]
    assert all(f"hardwareSpec {key} has no effect" in told for key in ("cpu.units", "drivers.mem.size"))
    assert "'gpus' is not known" in told and "num_drivers" not in told
    assert "num_drivers" in refusal(live, "", nodes={"num_drivers": "two"})[1]


@pytest.mark.parametrize("number", ["1.5", "0.0001", "half", "1e3", "½"])
def test_an_invalid_number_of_devices_is_refused(live: Live, number) -> None:
    code, text = refusal(live, f"--workerDeviceNum {number}")
    assert code == "submission.command" and f"--workerDeviceNum: '{number}'" in text


@pytest.mark.parametrize(
    ("nodes", "workers", "number", "share"),
    [
        ({"num_nodes": 2.0, "gpu": {"num_gpu": "2.0"}}, 2, 2, 1.0),
        ({"num_nodes": "3", "gpu": {"num_gpu": "0.5"}}, 3, 1, 0.5),
        ({"num_nodes": "", "gpu": {"num_gpu": .25}}, 1, 1, 0.25),
    ],
)
def test_numbers_of_a_hardware_spec_may_be_numbers_or_strings(live: Live, nodes, workers, number, share) -> None:
    """Contract, section 5.5: 'values may be numbers or strings'."""
    data = json.dumps({"hardwareSpec": {"nodes": nodes}})
    row = live.row(live.submitted(f"--exec-start distPyTorch {MAIN}", data=data))
    asked = row.workload.resources
    assert (row.num_worker, asked.device_num, asked.device_share) == (workers, number, share)


@pytest.mark.parametrize("number", [1.5, "0.0004", "1e3", "NaN", -1, True, [1]])
def test_an_invalid_number_in_a_hardware_spec_is_refused(live: Live, number) -> None:
    code, text = refusal(live, "", nodes={"gpu": {"num_gpu": number}})
    assert code == "submission.hardware" and "hardwareSpec gpu.num_gpu: " in text


def test_limits_apply_only_to_a_pack(live: Live) -> None:
    asked = spec(live, "--msd-pack-id p.1 --workerGPULimit 0.25 --workerCPULimit 250m --workerMemoryLimit 2g "
                       "--workerMemory 1g").resources
    assert (asked.pack, asked.gpu_limit, asked.cpu_limit, asked.memory) == ("p.1", 0.25, 0.25, 2 << 30)
    alone = spec(live, "--workerGPULimit 0.25 --workerCPULimit 2 --workerMemoryLimit 2g --workerMemory 1g").resources
    assert (alone.gpu_limit, alone.cpu_limit, alone.memory, alone.shares) == (None, None, 1 << 30, False)


@pytest.mark.parametrize(
    ("words", "expected", "named"),
    [
        ("--msd-pack-id a/b", "submission.resources", ["--msd-pack-id: ", "'a/b'"]),
        ("--msd-pack-id p --workerDeviceNum 2", "submission.resources",
         ["--msd-pack-id: ", "--workerDeviceNum must be 1, not 2"]),
        ("--msd-pack-id p --workerGPULimit lots", "submission.command",
         ["--workerGPULimit: ", "'lots'", "0.001", "1000000000"]),
        ("--submit-user 'a b'", "submission.option", ["--submit-user: ", "'a b'"]),
        ("--msd-task12n-node-selector =x", "submission.resources",
         ["--msd-task12n-node-selector: ''", "label=value,label=value"]),
        ("--msd-task12n-node-selector zone=a --msd-task0-node-selector zone=b", "submission.resources",
         ["--msd-task12n-node-selector: ", "zone=a", "zone=b"]),
    ],
)
def test_an_invalid_option_is_refused_and_named(live: Live, words, expected, named) -> None:
    code, text = refusal(live, words)
    assert code == expected and all(one in text for one in named), (code, text)


@pytest.mark.parametrize(
    "text", ["zone=a,gpu", "zone: a, gpu", "zone==a,gpu=", """'{"zone": "a", "gpu": ""}'"""]
)
def test_a_node_selector_is_read_in_four_spellings(live: Live, text) -> None:
    text = text if text.startswith("'") else f"'{text}'"
    assert spec(live, f"--msd-task12n-node-selector {text}").resources.labels == {"zone": "a", "gpu": ""}


def test_a_job_may_set_a_minimum_of_workers(live: Live) -> None:
    job = spec(live, "--numWorker 4 --msd-attr minWorkers=2", "edtPyTorch")
    assert (job.resources.min_workers, job.resources.engines) == (2, 4)
    assert spec(live, "--numWorker 4", "edtPyTorch").resources.min_workers == 1
    assert spec(live, "--numWorker 2 --workerDeviceNum 2 --msd-attr minWorkers=3", "edtPyTorch").resources.engines == 4
    code, text = refusal(live, "--numWorker 2 --msd-attr minWorkers=3", "edtPyTorch")
    assert code == "submission.resources" and all(one in text for one in ("minWorkers=3", "2 workers", "--numWorker"))
    code, text = refusal(live, "--msd-attr minWorkers=some", "edtPyTorch")
    assert code == "submission.option" and "--msd-attr minWorkers: 'some'" in text
    asked = spec(live, "--msd-attr minWorkers=some").resources
    assert asked.min_workers == 1, "other frameworks must leave minWorkers to the program"


@pytest.mark.parametrize(
    ("gpu", "profile"),
    [
        ({"num_gpu": 1, "gpu_profile": "slice", "mig_profile": "1g.10gb"}, "1g.10gb"),
        ({"num_gpu": "1", "gpu_profile": "Slice"}, "slice"),
        ({"num_gpu": 1, "gpu_profile": "generic"}, ""),
        ({"num_gpu": 1, "mig_profile": "mig-3g.20gb"}, "3g.20gb"),
        ({"num_gpu": 1}, ""),
    ],
)
def test_the_mig_profile_is_read_from_the_hardware_spec(live: Live, gpu, profile) -> None:
    assert spec(live, "", nodes={"gpu": gpu}).resources.mig_profile == profile


def test_an_invalid_mig_profile_is_refused(live: Live) -> None:
    for key, value in (("mig_profile", "../x"), ("gpu_profile", 3)):
        code, text = refusal(live, "", nodes={"gpu": {key: value}})
        assert code == "submission.hardware" and f"hardwareSpec gpu.{key}: '{value}'" in text


def test_a_job_counts_for_the_user_that_it_is_submitted_for(live: Live) -> None:
    job = spec(live, "--submit-user bob")
    assert (job.creator, job.scheduling.user) == (live.settings.user, "bob")
