"""Build what a release publishes, and check it: `python .ci/release.py FOLDER [--sign KEY] [--allow-unaudited]`.

The folder gets the wheel, the source distribution, `notes.md`, `sbom.json`, `constraints-hashed.txt`, `audit.json` and
`SHA256SUMS`, and with --sign the Ed25519 signature `SHA256SUMS.sig`. The same commit gives the same packages
(https://reproducible-builds.org/docs/source-date-epoch). The extra `release` has the tools. docs/releasing.md says
how a maintainer publishes the files.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
#: Files of other makers in the package, with versions, licenses and checksums.
VENDORED = ROOT / "local_backend" / "console" / "static" / "vendored.json"
#: The service with known vulnerabilities. Tests replace it.
OSV = os.environ.get("OSV_URL", "https://api.osv.dev/v1/query")


def build(folder: Path) -> tuple[Path, Path]:
    """Build the source distribution and, from it, the wheel. Return their paths.

    Both depend only on the tracked files, on `SOURCE_DATE_EPOCH` (default: the time of the commit) and on the
    versions of setuptools and wheel.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for tracked in filter(None, _git("ls-files", "-z").split("\0")):
            target = work / "tree" / tracked
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / tracked).read_bytes())
        source = _without_times(_built("sdist", work / "tree", work, epoch), folder, int(epoch))
        with tarfile.open(source) as archive:
            archive.extractall(work / "unpacked", filter="data")
        wheel = _built("wheel", next((work / "unpacked").iterdir()), work, epoch)
        return source, Path(shutil.copy(wheel, folder))


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _built(kind: str, tree: Path, folder: Path, epoch: str) -> Path:
    """Call setuptools in a process of its own, and return the file that it built."""
    program = f"import os; os.umask(0o022); from setuptools.build_meta import *; print(build_{kind}({str(folder)!r}))"
    environment = os.environ | {"SOURCE_DATE_EPOCH": epoch, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tree, env=environment, check=False, capture_output=True, text=True,
    )
    if done.returncode:
        sys.exit(f"release: cannot build the {kind}\n{done.stderr}")
    return folder / done.stdout.split()[-1]


def _without_times(built: Path, folder: Path, epoch: int) -> Path:
    """Write a source distribution again with fixed times, users and modes: setuptools takes those of the machine."""
    target = folder / built.name
    with tarfile.open(built) as old, target.open("wb") as raw, \
            gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as packed, tarfile.open(fileobj=packed, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.mtime, member.mode = epoch, 0o755 if member.isdir() else 0o644
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return target


def notes(version: str) -> str:
    """Return the section of the changelog about this version, or the section `Unreleased` if there is none."""
    parts = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    by_title = {part.split()[0].strip("[]"): part.partition("\n")[2].strip() for part in parts}
    if f"v{version}" in _git("tag", "--points-at", "HEAD").split() and version not in by_title:
        sys.exit(f"release: the commit has the tag v{version}; CHANGELOG.md has no part {version}")
    return by_title.get(version, by_title["Unreleased"]) + "\n"


def requirements(name: str, extras: frozenset[str] = frozenset()) -> Iterator[tuple[str, str]]:
    """Yield name and version of every installed package that `pip install NAME` needs."""
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [(name, extras)]
    while waiting:
        this, wanted = waiting.pop()
        if (this.lower(), wanted) in found:
            continue
        found.add((this.lower(), wanted))
        package = distribution(this)
        if this != name:
            yield package.metadata["Name"], package.version.partition("+")[0]
        for one in map(Requirement, package.requires or ()):
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in wanted | {""}):
                waiting.append((one.name, frozenset(one.extras)))


def bill_of_materials(version: str, target: Path) -> None:
    """Write the packages of an installation without extras, and those of vendored files, as CycloneDX JSON."""
    listed = sorted({f"{name}=={number}" for name, number in requirements("dlicmd")}, key=str.lower)
    with tempfile.TemporaryDirectory() as folder:
        project, pinned = Path(folder, "pyproject.toml"), Path(folder, "requirements.txt")
        project.write_text(f'[project]\nname = "dlicmd"\nversion = "{version}"\nlicense = "Apache-2.0"\n')
        pinned.write_text("\n".join(listed) + "\n")
        _tool("cyclonedx_py", "requirements", "--output-reproducible", "--pyproject", str(project), "--mc-type",
              "application", "--of", "JSON", "-o", str(target), str(pinned))
    bill = json.loads(target.read_text(encoding="utf-8"))
    bill["components"] += vendored()
    target.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")


def vendored() -> list[dict[str, object]]:
    """Return the packages of which the console contains files, as components of CycloneDX."""
    found: dict[str, dict[str, object]] = {}
    for one in json.loads(VENDORED.read_text(encoding="utf-8")):
        reference = f"pkg:npm/{one['package']}@{one['version']}"
        package = found.setdefault(reference, {
            "type": "library", "name": one["package"], "version": one["version"], "bom-ref": reference,
            "purl": reference, "licenses": [{"license": {"id": one["license"]}}], "components": [],
        })
        files = package["components"]
        assert isinstance(files, list)
        files.append({"type": "file", "name": one["file"], "bom-ref": f"{reference}#{one['path']}",
                      "hashes": [{"alg": "SHA-256", "content": one["sha256"]}]})
    return list(found.values())


def audit() -> dict[str, object]:
    """Return the result of an audit of the pinned versions. Exit with an error if one has a known vulnerability.
    `audited` is false if the service does not answer: then nothing is known."""
    if not _reachable():
        return {"audited": False, "reason": f"{OSV} does not answer"}
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", "-s", "osv", "--osv-url", OSV, "--progress-spinner", "off", "-f", "json",
         "--no-deps", "--disable-pip", "-r", str(ROOT / "constraints.txt")],
        capture_output=True, text=True, check=False,
    )
    if not done.stdout:
        if _reachable():
            sys.exit(f"release: pip-audit failed\n{done.stderr}")
        return {"audited": False, "reason": f"{OSV} stopped answering"}
    audited = json.loads(done.stdout)["dependencies"]
    known = [f"{one['name']} {one['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or '-'}"
             for one in audited for found in one.get("vulns", ())]
    if known:
        sys.exit("\n".join(["release: known vulnerabilities", *known]))
    return {"audited": True, "packages": sum("vulns" in one for one in audited)}


def conclude(result: dict[str, object], allow_unaudited: bool) -> None:
    """Say the result of the audit. Exit with an error if there was none, unless this is allowed."""
    if result["audited"]:
        print(f"release: {result['packages']} packages without known vulnerabilities")
        return
    said = f"release: NOT AUDITED: {result['reason']}. Vulnerabilities of the pinned versions are unknown."
    print("\n".join(["!" * len(said), said, "!" * len(said)]), file=sys.stderr)
    if not allow_unaudited:
        sys.exit("release: do not publish these files; run this again where the service answers, or add "
                 "--allow-unaudited to check everything else")


def _reachable() -> bool:
    question = json.dumps({"package": {"name": "pip", "ecosystem": "PyPI"}, "version": "26.3"}).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(OSV, question), timeout=10) as answer:
            return isinstance(json.load(answer), dict)
    except (OSError, ValueError):
        return False


def _tool(*words: str) -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-m", *words], check=True)


def sums(folder: Path, key: Path | None) -> None:
    """Write SHA256SUMS of all files, and with a key in PEM form its Ed25519 signature. Exit with an error for a key of
    another kind."""
    for old in folder.glob("SHA256SUMS*"):
        old.unlink()
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(folder.iterdir())]
    content = "".join(lines).encode()
    (folder / "SHA256SUMS").write_bytes(content)
    if key is None:
        return
    try:
        found = load_pem_private_key(key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as problem:
        sys.exit(f"release: cannot use {key}: {problem}")
    if not isinstance(found, Ed25519PrivateKey):
        sys.exit(f"release: {key} is not an Ed25519 key; make one: openssl genpkey -algorithm ed25519 -out {key}")
    (folder / "SHA256SUMS.sig").write_bytes(found.sign(content))
    print(f"release: signed SHA256SUMS with {key}")


def main(folder: Path, key: Path | None, allow_unaudited: bool) -> None:
    """Fill the folder, and check every file of it."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.iterdir():
        sys.exit(f"release: {folder} is not empty ({left.name}); SHA256SUMS covers all its files")
    source, wheel = build(folder)
    with tempfile.TemporaryDirectory() as again:
        for first, second in zip((source, wheel), build(Path(again)), strict=True):
            if first.read_bytes() != second.read_bytes():
                sys.exit(f"release: two builds of {first.name} differ")
    _tool("twine", "check", "--strict", str(source), str(wheel))
    version = wheel.name.split("-")[1]
    (folder / "notes.md").write_text(notes(version), encoding="utf-8")
    shutil.copy(ROOT / "constraints-hashed.txt", folder)
    bill_of_materials(version, folder / "sbom.json")
    result = audit()
    (folder / "audit.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    sums(folder, key)
    conclude(result, allow_unaudited)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sign", type=Path, metavar="KEY", help="sign SHA256SUMS with this Ed25519 key (PEM)")
    parser.add_argument("--allow-unaudited", action="store_true", help="pass if no vulnerabilities can be looked up")
    given = parser.parse_args()
    main(given.folder, given.sign, given.allow_unaudited)
