"""What a release publishes: complete, the same bytes for the same commit, without known vulnerabilities."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parent.parent
RELEASE = ROOT / ".ci" / "release.py"
FLAW = {"id": "TEST-2026-1", "summary": "a flaw", "published": "2026-01-01T00:00:00Z", "affected": [
    {"package": {"name": "requests", "ecosystem": "PyPI"}, "ranges": [
        {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.0"}]}]}]}


def built(folder: Path) -> tuple[Path, Path]:
    """Return the source distribution and the wheel."""
    paths: tuple[Path, Path] = runpy.run_path(str(RELEASE))["build"](folder)
    return paths


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("release"))[1]


@contextmanager
def service(flawed: str) -> Iterator[str]:
    """Yield the address of a service that knows one vulnerability of the package `flawed`."""
    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps({"vulns": [FLAW]} if asked["package"]["name"] == flawed else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/query"
        server.shutdown()


def audited(address: str, allowed: bool = False) -> subprocess.CompletedProcess[str]:
    program = f"import runpy; one = runpy.run_path({str(RELEASE)!r}); one['conclude'](one['audit'](), {allowed})"
    return subprocess.run([sys.executable, "-c", program], env=os.environ | {"OSV_URL": address}, check=False,
                          capture_output=True, text=True)


def test_two_builds_have_the_same_bytes(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    source, again = built(tmp_path)
    assert again.read_bytes() == wheel.read_bytes()
    assert source.read_bytes() == (wheel.parent / source.name).read_bytes()


@pytest.mark.parametrize(("flawed", "fails"), [("requests", True), ("no-package-of-ours", False)])
def test_an_audit_fails_on_a_known_vulnerability(flawed: str, fails: bool) -> None:
    pytest.importorskip("pip_audit", reason="needs the extra `release`")
    with service(flawed) as address:
        done = audited(address)
    assert (done.returncode == 1) is fails, done.stderr
    assert (FLAW["id"] in done.stderr) is fails


@pytest.mark.parametrize("allowed", [False, True])
def test_an_audit_without_its_service_does_not_pass_silently(allowed: bool) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/v1/query"
        done = audited(address, allowed)
    assert done.returncode == (0 if allowed else 1)
    assert "NOT AUDITED" in done.stderr and address in done.stderr


def test_the_signature_of_a_release_is_verified_with_openssl(tmp_path: Path) -> None:
    key, public, folder = tmp_path / "key.pem", tmp_path / "key.pub", tmp_path / "dist"
    folder.mkdir()
    (folder / "a.whl").write_bytes(b"wheel")
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], check=True)
    runpy.run_path(str(RELEASE))["sums"](folder, key)
    verify = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", public, "-rawin", "-in", "SHA256SUMS",
              "-sigfile", "SHA256SUMS.sig"]
    for words in (verify, ["sha256sum", "-c", "SHA256SUMS"]):
        subprocess.run(words, cwd=folder, check=True, capture_output=True)
    (folder / "SHA256SUMS").write_bytes((folder / "SHA256SUMS").read_bytes().replace(b"a.whl", b"b.whl"))
    assert subprocess.run(verify, cwd=folder, check=False, capture_output=True).returncode != 0


def test_a_key_of_another_kind_signs_nothing(tmp_path: Path) -> None:
    (tmp_path / "dist").mkdir()
    subprocess.run(["openssl", "genpkey", "-algorithm", "rsa", "-out", tmp_path / "key.pem"], check=True,
                   capture_output=True)
    with pytest.raises(SystemExit):
        runpy.run_path(str(RELEASE))["sums"](tmp_path / "dist", tmp_path / "key.pem")
    assert not (tmp_path / "dist" / "SHA256SUMS.sig").exists()


def supply(root: Path, word: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(root / ".ci" / "supply.py"), word], check=False, capture_output=True,
                          text=True)


def test_the_hashed_constraints_agree_with_the_others(tmp_path: Path) -> None:
    assert supply(ROOT, "check").returncode == 0, "run python .ci/supply.py lock"
    (tmp_path / ".ci").mkdir()
    for name in (".ci/supply.py", "constraints.txt", "constraints-hashed.txt", "setup.cfg"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    static = Path("local_backend", "console", "static")
    shutil.copytree(ROOT / static, tmp_path / static)
    assert supply(tmp_path, "check").returncode == 0
    for name, old, new in (
        ("constraints.txt", "requests==", "requests==0"),
        ("constraints-hashed.txt", "\nuvicorn==", "\nother=="),
        ("constraints-hashed.txt", "--hash=sha256:", "--hash=md5:"),
    ):
        content = (tmp_path / name).read_text()
        (tmp_path / name).write_text(content.replace(old, new))
        assert supply(tmp_path, "check").returncode == 1, name
        (tmp_path / name).write_text(content)
    (tmp_path / static / "htmx.js").write_text("another()")
    changed = supply(tmp_path, "check")
    assert changed.returncode == 1 and "htmx.js is not the file of htmx.org" in changed.stderr


def test_every_installed_package_has_an_allowed_license(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = supply(ROOT, "licenses")
    assert done.returncode == 0, done.stderr
    assert "requests: Apache" in done.stdout and "htmx.org htmx.js: 0BSD" in done.stdout
    for stated in ("License-Expression: AGPL-3.0-only\n", ""):
        about = tmp_path / "odd-1.0.dist-info" / "METADATA"
        about.parent.mkdir(exist_ok=True)
        about.write_text(f"Metadata-Version: 2.4\nName: odd\nVersion: 1.0\n{stated}")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        refused = supply(ROOT, "licenses")
        assert refused.returncode == 1 and "odd: " in refused.stderr


def test_the_bill_of_materials_lists_what_an_installation_needs(tmp_path: Path) -> None:
    pytest.importorskip("cyclonedx_py", reason="needs the extra `release`")
    runpy.run_path(str(RELEASE))["bill_of_materials"]("1.2.3", tmp_path / "sbom.json")
    bill = json.loads((tmp_path / "sbom.json").read_text())
    names = {one["name"].lower() for one in bill["components"]}
    assert {"torch", "requests", "urllib3", "htmx.org", "uplot"} <= names
    assert not {"pytest", "mkdocs-material"} & names
    assert bill["metadata"]["component"]["version"] == "1.2.3"


def test_the_wheel_contains_exactly_the_product_packages(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "dlicmd", "local_backend", "pyedt", "fabric_data", "fabric_model.py", "callbacks.py", "emetrics.py",
        "redhareapi.py", "redhareapiversion.py",
    }
    assert {"dlicmd/samples/digits/train.py", "dlicmd/samples/digits/data/digits.csv.gz",
            "dlicmd/samples/digits/.dlicmdignore", "dlicmd/samples/single/train.py", "dlicmd/py.typed",
            "local_backend/console/templates/base.html", "local_backend/console/static/htmx.js",
            "local_backend/console/static/htmx.LICENSE", "local_backend/console/static/uplot.LICENSE"} <= names
    assert any(name.startswith("local_backend/store/migrations/versions/v") for name in names)


def test_an_installed_package_finds_its_samples(wheel: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path / "site"), str(wheel)],
        check=True, capture_output=True,
    )
    program = "from dlicmd.sdk.paths import samples_dir; print(samples_dir())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "site")}, check=True,
        capture_output=True, text=True,
    )
    assert Path(done.stdout.strip()) == tmp_path / "site" / "dlicmd" / "samples"
