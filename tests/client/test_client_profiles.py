"""Profiles: the sources of settings that a command line leaves open."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from client_desk import Desk
from fake_server import TOKEN, FakeServer, exec_object

DOCS = Path(__file__).parent.parent.parent / "docs"


def configure(desk: Desk, text: str | bytes) -> Path:
    file = desk.home / ".config" / "dlicmd" / "config.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def server_of(fake: FakeServer, more: str = "") -> str:
    return f"rest-host: 127.0.0.1, rest-port: {fake.port}, http: true{more}"


def settings(desk: Desk, *words: str) -> dict[str, tuple]:
    done = desk.run("--config-show", "-o", "json", *words)
    assert done.code == 0, done
    return {row["setting"]: (row["value"], row["source"]) for row in json.loads(done.out)}


def test_the_default_profile_names_the_server(desk: Desk, fake: FakeServer) -> None:
    fake.execs["w-1"] = exec_object("w-1")
    configure(desk, f"default: lab\nprofiles:\n  lab: {{{server_of(fake, ', output: json')}}}\n")
    desk.environment["DLICMD_TOKEN"] = TOKEN
    done = desk.run("--exec-get-all")
    assert done.code == 0, done
    assert json.loads(done.out)[0]["id"] == "w-1"
    assert done.err == "" and len(fake.seen) == 1


def test_the_profile_is_chosen_by_flag_environment_or_default(desk: Desk) -> None:
    configure(desk, "default: a\nprofiles: {a: {username: ua}, b: {username: ub, rest-host: h}, c: {}}\n")
    assert settings(desk)["profile"][0] == "a"
    desk.environment["DLICMD_PROFILE"] = "b"
    assert settings(desk)["profile"] == ("b", "environment variable DLICMD_PROFILE")
    assert settings(desk)["username"] == ("ub", "profile b")
    assert settings(desk, "--profile", "c")["profile"] == ("c", "flag")
    assert settings(desk, "--profile", "none")["profile"] == (None, "flag")
    assert settings(desk, "--profile", "none")["rest-host"] == (None, "default")


def test_settings_come_from_flag_environment_profile_default_in_order(desk: Desk) -> None:
    file = configure(desk, "profiles: {p: {rest-host: h, username: up, ca-cert: ca.pem, insecure: true, output: yaml}}")
    use = ["--profile", "p"]
    assert settings(desk)["username"] == (None, "default")
    found = settings(desk, *use)
    assert found["username"] == ("up", "profile p") and found["output"] == ("json", "flag")
    assert found["ca-cert"] == (str(file.parent / "ca.pem"), "profile p") and found["insecure"] == (True, "profile p")
    desk.environment |= {"DLICMD_USERNAME": "ue", "DLICMD_INSECURE": "0", "DLICMD_PASSWORD": "s3cret"}
    found = settings(desk, *use)
    assert found["username"] == ("ue", "environment variable DLICMD_USERNAME")
    assert found["insecure"] == (False, "environment variable DLICMD_INSECURE")
    assert found["password"] == ("***", "environment variable DLICMD_PASSWORD")
    assert settings(desk, *use, "--username", "uf")["username"] == ("uf", "flag")
    assert desk.run("--config-show", *use).out.startswith("- setting: config\n")
    assert "username" in desk.run("--config-show", *use, "-o", "table").out


def test_secrets_are_masked(desk: Desk) -> None:
    configure(desk, "default: p\nprofiles: {p: {msd-env: {MY_TOKEN: s3cret, A: 1}, cs-url-bearer: s3cret}}\n")
    (desk.home / ".dlicmd").write_text("s3cret")
    done = desk.run("--config-show", "--password", "s3cret")
    assert done.code == 0, done
    assert "s3cret" not in done.out + done.err
    assert "MY_TOKEN=***" in done.out and "A=1" in done.out and "token file" in done.out


def test_a_profile_gives_defaults_for_a_submission(desk: Desk, local: FakeServer) -> None:
    configure(desk, "default: p\nprofiles: {p: {numWorker: 2, consumer: a, msd-env: {A: 1, B: 2}, output: json}}\n")
    (desk.folder / "job.yaml").write_text("framework: PyTorch\nuser-cmd: true\nnumWorker: 3\nargs: ['true']\n")
    done = desk.run("--exec-start", "-f", "job.yaml", "--msd-env", "B=3", "--profile=p")
    assert done.code == 0, done
    assert json.loads(done.out)["execId"]
    [seen] = local.requests("POST")
    assert seen.query["args"] == ["--exec-start PyTorch --msd-env B=3 --user-cmd --numWorker 3 --consumer a "
                                  "--msd-env A=1 -- true"]
    assert desk.run("--exec-get-all").code == 0


def test_another_server_does_not_inherit_connection_settings(desk: Desk, fake: FakeServer) -> None:
    configure(desk, "default: p\nprofiles: {p: {rest-host: h, rest-port: 1, http: true, insecure: true}}\n")
    found = settings(desk, "--rest-host", "other")
    assert found["rest-host"] == ("other", "flag")
    assert found["http"] == found["insecure"] == (False, "default") and found["rest-port"] == (None, "default")
    assert settings(desk, "--rest-host", "h")["http"] == (True, "profile p")


def test_connection_settings_without_a_server_have_no_effect(desk: Desk, local: FakeServer) -> None:
    configure(desk, "default: p\nprofiles: {p: {rest-port: 1, http: true}}\n")
    assert desk.run("--exec-get-all").code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("default: [\n", "line 2: invalid YAML"), (b"\xff", "invalid YAML"), ("- a\n", "line 1: "),
        ("defautl: a\n", "line 1: unknown setting 'defautl'; did you mean default?"),
        ("default: lap\nprofiles: {lab: {}}\n", "line 1: unknown profile 'lap'; did you mean lab?"),
        ("profiles: {a: {rest-hots: x}}\n", "unknown option 'rest-hots'; did you mean rest-host?"),
        ("profiles:\n  a:\n    password: x\n", "line 3: 'password'"),
        ("profiles: {a: {jwt-token: x}}\n", "'jwt-token'"),
        ("profiles: {a: {rest-port: x}}\n", "rest-port: 'x'"), ("profiles: {a: {output: xml}}\n", "output: 'xml'"),
        ("profiles: {a: {follow: true}}\n", "'follow'"), ("profiles: {a: {profile: b}}\n", "'profile'"),
        ("profiles: {none: {}}\n", "'none'"), ("profiles: {a: 3}\n", "a profile needs lines of"),
        ("profiles: {a: &a {}, b: *a}\n", "aliases"),
    ],
)
def test_a_wrong_profile_file_is_reported_in_one_line(
    desk: Desk, local: FakeServer, text: str | bytes, said: str
) -> None:
    configure(desk, text)
    done = desk.run("--exec-get-all")
    assert done.code == 2 and done.out == "", done
    assert said in done.err and "config.yaml" in done.err and done.err.count("\n") == 1
    assert desk.run("--version").code == 0
    assert desk.run("--exec-get-all", "--profile", "none").code == 0


def test_an_unknown_profile_is_reported(desk: Desk, local: FakeServer) -> None:
    done = desk.run("--exec-get-all", "--profile", "x")
    assert done.code == 2 and "'x'" in done.err and "docs/profiles.md" in done.err and done.err.count("\n") == 1
    configure(desk, "profiles: {a: {}}\n")
    done = desk.run("--exec-get-all", "--profile", "x")
    assert done.code == 2 and "'x'" in done.err and "config.yaml has only a" in done.err
    desk.environment["DLICMD_CONFIG"] = str(desk.folder / "mine.yaml")
    assert desk.run("--exec-get-all").code == 2
    (desk.folder / "mine.yaml").write_text("profiles: {x: {output: json}}\n")
    assert desk.run("--exec-get-all", "--profile", "x").out == "[]\n"


def test_an_unusable_path_in_dlicmd_config_is_reported(desk: Desk, local: FakeServer) -> None:
    for name in ("~nobody-of-this-name/x", "x" * 5000, str(desk.folder)):
        desk.environment["DLICMD_CONFIG"] = name
        done = desk.run("--exec-get-all")
        assert done.code == 2 and done.err.count("\n") == 1 and "unexpected" not in done.err, done


def test_the_profile_is_not_sent_to_the_server(desk: Desk, local: FakeServer) -> None:
    configure(desk, "profiles: {a: {}}\n")
    done = desk.run("--exec-start", "PyTorch", "--user-cmd", "--profile", "a", "--", "--profile", "b")
    assert done.code == 0, done
    assert local.requests("POST")[0].query["args"] == ["--exec-start PyTorch --user-cmd -- --profile b"]


def test_the_demo_ignores_the_server_of_the_profile(desk: Desk) -> None:
    configure(desk, "default: a\nprofiles: {a: {rest-host: h, numWorker: 7}}\n")
    done = desk.run("--demo", "--dry-run")
    assert done.code == 0, done
    assert "numWorker%202" in done.out


def test_the_example_of_the_documentation_works(desk: Desk) -> None:
    page = (DOCS / "profiles.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    file = configure(desk, example)
    found = settings(desk)
    assert found["rest-host"] == ("wmla.example.org", "profile lab")
    assert found["rest-port"] == (9243, "profile lab") and found["consumer"] == ("research", "profile lab")
    assert found["ca-cert"][0] == str(file.parent / "lab-ca.pem")
    assert settings(desk, "--profile", "here")["numWorker"] == (2, "profile here")


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux, all releases of platformdirs use XDG_CONFIG_HOME")
@pytest.mark.parametrize("named", [{}, {"XDG_CONFIG_HOME": "/tmp/x y"}, {"XDG_CONFIG_HOME": " "}])
def test_the_path_of_the_file_agrees_with_platformdirs(desk: Desk, named: dict[str, str]) -> None:
    probe = "import dlicmd.sdk.paths, platformdirs; print(dlicmd.sdk.paths.config_file().parent); " \
            "print(platformdirs.user_config_dir('dlicmd', appauthor=False))"
    done = subprocess.run([sys.executable, "-c", probe], env={**os.environ, **desk.environment, **named},
                          capture_output=True, text=True, check=True, timeout=90)
    ours, theirs = done.stdout.splitlines()
    assert ours == theirs
