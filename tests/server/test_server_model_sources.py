"""Models made of finished execs: --exec-deploy, and the model store."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
from live_server import TOKEN, Live
from modelling import KERNEL, Modelling
from searching import searching

from dlicmd.contract.states import FINISHED, PENDING, RUNNING
from local_backend.settings import Quotas


def trained(live: Live, result: dict[str, bytes] | None = None, **more: Any) -> str:
    """Return a finished exec with these files in its result."""
    exec_id = live.submitted(**{"files": {"main.py": b"print(1)\n", "kernel.py": KERNEL}, **more})
    row = live.row(exec_id)
    folder = live.settings.paths.job(exec_id, row.creator).model
    for name, content in ({"weights.pt": b"w"} if result is None else result).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    live.move(exec_id, PENDING, RUNNING, FINISHED)
    return exec_id


def torch_file(content: object = OrderedDict()) -> bytes:
    """Return a file as torch.save writes it, with weights alone."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("net/data.pkl", pickle.dumps(content, 2))
    return file.getvalue()


def deploy(live: Live, exec_id: str, **words: Any) -> Any:
    return live.call("POST", f"/execs/{exec_id}/deploy", json.dumps(words).encode())


@pytest.fixture
def dlim(live: Live) -> Modelling:
    return Modelling(live)


@pytest.fixture
def team(start: Callable[..., Live]) -> Live:
    """A server for several users."""
    return start(embedded=False, jobs_share_server_account=True)


def test_a_finished_exec_is_deployed_with_its_lineage(live: Live, dlim: Modelling) -> None:
    exec_id = trained(live)
    answer = deploy(live, exec_id, name="digits", kernel="kernel.py", weight="weights.pt", tag="t", runtime="dlipy3",
                    attributes={"classes": "10"}, environments={"A": "1"})
    assert answer.status == 200, answer.text
    made = answer.json()
    assert {key: made[key] for key in ("name", "kernel_path", "weight_path", "tag", "runtime", "attributes",
                                       "mk_environments")} == {
        "name": "digits", "kernel_path": "kernel.py", "weight_path": "model/weights.pt", "tag": "t",
        "runtime": "dlipy3", "attributes": [{"key": "classes", "value": "10"}],
        "mk_environments": [{"name": "A", "value": "1"}]}
    source = made["revisions"][0]["source"]
    assert (source["exec"], source["framework"]) == (exec_id, "PyTorch")
    folder = live.settings.paths.bundle(made["model_path"].rpartition("/")[2])
    assert {one.name for one in folder.iterdir()} == {"main.py", "kernel.py", "model", "model.json", "README.md"}
    again = deploy(live, exec_id, name="digits", kernel="kernel.py").json()
    assert [one["number"] for one in again["revisions"]] == [1, 2]
    assert again["weight_path"] == "./"


def test_the_result_comes_before_the_submitted_code(live: Live) -> None:
    exec_id = trained(live, {"kernel.py": b"# of the result\n"})
    made = deploy(live, exec_id, kernel="kernel.py").json()
    assert made["name"] == exec_id
    folder = live.settings.paths.bundle(made["model_path"].rpartition("/")[2])
    assert (folder / made["kernel_path"]).read_bytes() == b"# of the result\n"


@pytest.mark.parametrize("weight", ["train/final.pth", "model/train/final.pth"])
def test_weights_have_the_names_of_the_zip_of_the_result_or_of_the_folder(live: Live, weight: str) -> None:
    exec_id = trained(live, {"train/final.pth": b"w"})
    assert deploy(live, exec_id, kernel="kernel.py", weight=weight).json()["weight_path"] == "model/train/final.pth"


def test_a_ready_made_kernel_needs_no_file(live: Live) -> None:
    made = deploy(live, trained(live, {"net.onnx": b"x"}), kernel="onnx").json()
    assert (made["kernel_type"], made["weight_path"], made["kernel_path"]) == ("onnx", "model/net.onnx", "")


def test_the_kernel_is_found_from_the_files(live: Live) -> None:
    assert deploy(live, trained(live)).json()["kernel_path"] == "kernel.py"
    plain = {"main.py": b""}
    found = deploy(live, trained(live, {"net.onnx": b"x", "notes.json": b"{}"}, files=plain)).json()
    assert (found["kernel_type"], found["weight_path"]) == ("onnx", "model/net.onnx")
    for unclear in ({"net.onnx": b"x", "net.pth": b"x"}, {"notes.txt": b"x"}):
        assert deploy(live, trained(live, unclear, files=plain)).error == (400, "model.description")


NET = b"from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self%s):\n        pass\n"
DATA = b"class Rows(Dataset):\n    pass\n"


@pytest.mark.parametrize(("code", "result", "attributes", "refusal"), [
    ({"main.py": b"print(1)\n", "data.py": DATA}, torch_file(), {}, "model.class"),
    ({"main.py": NET % b"" + b"print(1)\n"}, torch_file(), {}, "model.class"),
    ({"main.py": NET % b", hidden"}, torch_file(), {}, "model.class"),
    ({"main.py": NET % b", *, hidden"}, torch_file(), {"class_args": "["}, "model.class"),
    ({"main.py": NET % b""}, torch_file(), {"class": "other:Net"}, "model.class"),
    ({"main.py": NET % b""}, torch_file(), {"class": "../main:Net"}, "model.class"),
    ({"main.py": NET % b""}, torch_file(io.StringIO()), {}, "model.pickle"),
    ({"main.py": NET % b", hidden=3"}, torch_file(), {}, None),
    ({"main.py": NET % b", hidden"}, torch_file(), {"class_args": '{"hidden": 3}'}, None),
    ({"main.py": NET % b"" + b"print(1)\n"}, torch_file(), {"class": "main:Net"}, None),
    ({"main.py": b"print(1)\n"}, torch_file(io.StringIO()), {"allow_pickle": "true"}, None),
    ({"main.py": b"print(1)\n"}, b"written by an old version of PyTorch", {}, None),
])
def test_weights_without_their_class_are_refused_before_the_deployment(
    live: Live, code: dict[str, bytes], result: bytes, attributes: dict[str, str], refusal: str | None
) -> None:
    answer = deploy(live, trained(live, {"net.pth": result}, files=code), attributes=attributes, name="net")
    assert answer.status == 200 if refusal is None else answer.error == (400, refusal), answer.text
    assert (Modelling(live).call("GET", "/model/net").status == 200) == (refusal is None)


def test_a_kernel_without_a_file_that_it_loads_is_refused(live: Live) -> None:
    assert deploy(live, trained(live, {"net.pth": b"w"}), kernel="onnx").error == (400, "model.weights")
    assert deploy(live, trained(live, {"net.joblib": b"w"}), kernel="sklearn").error == (400, "model.pickle")
    assert deploy(live, trained(live, {"bert/config.json": b"{}"}), kernel="huggingface").json()[
        "weight_path"] == "model/bert"


def test_a_saved_model_tells_what_a_deployment_uses(live: Live, dlim: Modelling) -> None:
    files = {"main.py": NET % b"", "own.py": b"import redhareapi\n"}
    exec_id = trained(live, {"a.pth": torch_file(), "b.pth": torch_file(), "nets.py": NET % b", size" + DATA},
                      files=files)
    assert dlim.call("POST", "/modelstore", {"name": "net", "exec": exec_id}).status == 201
    found = dlim.get("/modelstore/net/deploy")
    assert (found["kernel"], found["weight"], found["error"]["code"]) == ("torch", "", "model.description")
    assert found["weights"] == ["model/a.pth", "model/b.pth"] and found["kernels"][:2] == ["torch", "own.py"]
    assert found["classes"] == [{"name": "main:Net", "needs": []}, {"name": "model.nets:Net", "needs": ["size"]}]
    found = dlim.get("/modelstore/net/deploy?version=1&weight=b.pth")
    assert (found["weight"], found["modelClass"], "error" in found) == ("model/b.pth", "main:Net", False)
    assert dlim.get("/modelstore/net/deploy?kernel=onnx")["error"]["code"] == "model.weights"
    for outside in ("kernel=../x.py", "kernel=torch&weight=../../x", "kernel=torch&weight=/etc/passwd"):
        assert dlim.get(f"/modelstore/net/deploy?{outside}")["error"]["code"] in ("model.description", "model.files")
    assert dlim.call("GET", "/modelstore/net/deploy?version=7").error == (404, "model.not_saved")


@pytest.mark.parametrize(("words", "code"), [
    ({"kernel": "none.py"}, "model.files"),
    ({"kernel": "kernel.py", "weight": "none.pt"}, "model.files"),
    ({"kernel": "../kernel.py"}, "model.description"), ({"kernel": "kernel.py", "name": "A B"}, "model.description"),
    ({"kernel": 3}, "body.value"), ({"kernel": "kernel.py", "attributes": []}, "body.value"),
    ({"kernel": "kernel.py", "environments": {"A B": "1"}}, "model.description"),
])
def test_a_bad_deployment_is_refused(live: Live, words: dict[str, Any], code: str) -> None:
    assert deploy(live, trained(live), **words).error == (400, code)
    assert list(live.settings.paths.incoming.iterdir()) == []


def test_links_of_a_program_are_left_out(live: Live) -> None:
    exec_id = live.submitted(files={"main.py": b"", "kernel.py": KERNEL})
    folder = live.paths(exec_id).model
    (folder / "weights.pt").symlink_to("/etc/hostname")
    live.move(exec_id, PENDING, RUNNING, FINISHED)
    made = deploy(live, exec_id, kernel="kernel.py").json()
    bundle = live.settings.paths.bundle(made["model_path"].rpartition("/")[2])
    assert not (bundle / "model").exists()


def test_a_model_is_saved_promoted_and_deployed(live: Live, dlim: Modelling) -> None:
    first, second = trained(live, {"best/net.onnx": b"1", "other.txt": b""}), trained(live, {"best/net.onnx": b"2"})
    for number, exec_id in enumerate((first, second), 1):
        answer = dlim.call("POST", "/modelstore", {"name": "digits", "exec": exec_id, "path": "best"})
        assert (answer.status, answer.json()["version"], answer.json()["exec"]) == (201, number, exec_id)
    assert dlim.call("PUT", "/modelstore/digits/promote", {"space": "online", "version": 1}).json()["space"] == "online"
    assert [(one["version"], one.get("space")) for one in dlim.get("/modelstore")] == [(1, "online"), (2, None)]
    made = dlim.call("POST", "/modelstore/digits/deploy", {"kernel_type": "onnx", "version": 1}).json()
    assert (made["name"], made["weight_path"]) == ("digits", "net.onnx")
    source = made["revisions"][0]["source"]
    assert (source["exec"], source["saved"], source["version"], source["space"]) == (first, "digits", 1, "online")
    assert dlim.call("DELETE", "/modelstore/digits?version=1").json() == {"status": "OK"}
    assert dlim.call("DELETE", "/modelstore/digits").json() == {"status": "OK"}
    assert dlim.call("DELETE", "/modelstore/digits").error == (404, "model.not_saved")
    assert dlim.get("/model/digits") == made


def test_what_cannot_be_saved(live: Live, dlim: Modelling) -> None:
    running, done = live.submitted(), trained(live)
    for body, status, code in (
        ({"name": "x", "exec": running}, 409, "exec.not_finished"), ({"name": "x", "exec": "local-9"}, 400,
                                                                     "exec.not_found"),
        ({"name": "X", "exec": done}, 400, "model.description"), ({"exec": done}, 400, "body.value"),
        ({"name": "x", "exec": done, "path": "none"}, 400, "exec.no_result"),
        ({"name": "x", "exec": done, "path": "../.."}, 400, "model.files"),
    ):
        assert dlim.call("POST", "/modelstore", body).error == (status, code), body
    assert dlim.get("/modelstore") == []


def test_saved_models_of_other_users_are_hidden_until_they_are_promoted(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    dlim, bob, carol = Modelling(live), live.add_user("bob"), live.add_user("carol")
    exec_id = trained(live, token=bob)
    assert dlim.call("POST", "/modelstore", {"name": "m", "exec": exec_id}, bob).status == 201
    assert dlim.call("POST", "/modelstore", {"name": "n", "exec": exec_id}, carol).error == (400, "exec.not_found")
    assert dlim.get("/modelstore", carol) == []
    assert dlim.call("POST", "/modelstore/m/deploy", {"kernel": "kernel.py"}, carol).error == (404, "model.not_saved")
    assert dlim.call("PUT", "/modelstore/m/promote", {"space": "s"}, carol).error == (404, "model.not_saved")
    assert dlim.call("PUT", "/modelstore/m/promote", {"space": "s"}, bob).status == 200
    assert [one["name"] for one in dlim.get("/modelstore", carol)] == ["m"]
    assert dlim.call("DELETE", "/modelstore/m", token=carol).error == (403, "model.of_another_user")
    assert dlim.call("POST", "/modelstore/m/deploy", {"kernel": "kernel.py"}, carol).json()["creator"] == "carol"


def test_other_users_see_neither_command_nor_data_in_the_lineage_of_a_model(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    dlim, bob, carol = Modelling(live), live.add_user("bob"), live.add_user("carol")
    private = ("hush-args", "hush-data")
    (live.settings.data_fs / "hush-data").mkdir(parents=True)
    exec_id = trained(live, token=bob, args="--exec-start PyTorch --model-main main.py --msd-env MODE=hush-args "
                                            "--cs-datastore-meta type=fs,data_path=hush-data")
    assert dlim.call("POST", "/modelstore", {"name": "m", "exec": exec_id}, bob).status == 201
    assert dlim.call("PUT", "/modelstore/m/promote", {"space": "s"}, bob).status == 200
    assert dlim.call("POST", "/modelstore/m/deploy", {"kernel": "kernel.py"}, carol).status == 200
    deployed = live.call("POST", f"/execs/{exec_id}/deploy", b'{"name": "ping", "kernel": "kernel.py"}', token=bob)
    assert deployed.status == 200
    assert dlim.call("PUT", "/model/ping/shared", ["carol"], bob).status == 204
    for path in ("/modelstore", "/model/m", "/model/ping", "/model", "/model/ping/revisions"):
        seen = dlim.call("GET", path, token=carol)
        assert exec_id in seen.text and not any(one in seen.text for one in private), path
    for token in (bob, TOKEN):
        assert all(one in dlim.call("GET", "/modelstore", token=token).text for one in private)
        assert all(one in dlim.call("GET", "/model/ping", token=token).text for one in private)


def test_saved_models_count_as_stored_bytes(start: Callable[..., Live]) -> None:
    live = start(quotas=Quotas(stored_bytes=1 << 20))
    dlim = Modelling(live)
    first, second = (trained(live, {"net.onnx": bytes([number]) * 600_000}) for number in range(2))
    for _ in range(2):
        assert dlim.call("POST", "/modelstore", {"name": "m", "exec": first}).status == 201, "the same files again"
    assert dlim.call("POST", "/modelstore", {"name": "m", "exec": second}).error == (507, "quota.bytes")


def test_the_best_result_of_a_search_becomes_a_saved_model(team: Live) -> None:
    dlim, bob = Modelling(team), team.add_user("bob")
    with searching(team) as search:
        search.begin()
        legacy = "/models/digits/hypersearch/s"
        assert team.call("PUT", f"{legacy}/update").error == (409, "search.no_best")
        ids = search.running(2)
        for exec_id, value in zip(ids, (2.0, 1.0), strict=True):
            folder = team.paths(exec_id).model
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "weights.pt").write_bytes(exec_id.encode())
            search.loss(exec_id, value)
        search.over()
        made = team.call("PUT", f"{legacy}/update")
        assert made.status == 200
        assert {key: made.json()[key] for key in ("name", "version", "exec")} == {
            "name": "digits", "version": 1, "exec": ids[1]}
        assert team.call("PUT", f"{legacy}/update").json()["version"] == 2
        new = team.call("POST", f"{legacy}/create/other")
        assert (new.status, new.json()["name"], new.json()["version"]) == (201, "other", 1)
        assert team.call("POST", f"{legacy}/create/other").error == (409, "model.exists")
        assert team.call("POST", f"{legacy}/create/Odd%20Name").error == (400, "model.description")
        assert team.call("PUT", "/models/digits/hypersearch/none/update").error == (404, "search.not_found")
        assert team.call("POST", f"{legacy}/create/mine", token=bob).error == (404, "search.not_found")
    assert [(one["name"], one["version"]) for one in dlim.get("/modelstore")] == [
        ("digits", 1), ("digits", 2), ("other", 1)]
