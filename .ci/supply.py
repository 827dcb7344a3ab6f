"""Check the packages of others: their licenses, and the hashes with which a server is installed.

    python .ci/supply.py licenses   # fail on a license that is unknown or not allowed; print the list
    python .ci/supply.py lock       # write constraints-hashed.txt with uv; asks the package index
    python .ci/supply.py check      # fail if constraints-hashed.txt disagrees with constraints.txt, or vendored files
                                    # with vendored.json; needs no network
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
CONSTRAINTS, HASHED = ROOT / "constraints.txt", ROOT / "constraints-hashed.txt"
#: Files of other makers in the package, in a list with their versions, licenses and checksums.
VENDORED = ROOT / "local_backend" / "console" / "static" / "vendored.json"
#: Versions of CPython for which the hashes count.
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
#: Licenses of packages that an installation of the product may bring along: SPDX ids, and the names that older packages
#: use for them. All permit use and distribution in products of any license; MPL 2.0 concerns changes of its own files.
ALLOWED = frozenset({
    "0bsd", "3-clause bsd license", "apache", "apache 2.0", "apache license", "apache license 2.0",
    "apache 2.0 license", "apache software license",
    "apache-2.0", "apache-2.0 with llvm-exception", "bsd", "bsd license", "bsd-2-clause",
    "bsd-3-clause", "bsl-1.0", "cc0-1.0", "isc", "isc license", "isc license (iscl)", "mit", "mit license", "mit-0",
    "mit-cmu", "mpl-2.0", "mozilla public license 2.0 (mpl 2.0)", "psf-2.0", "psfl",
    "python software foundation license", "zlib",
})
#: Packages with another license, or with none that a program can read → the license, and why it is acceptable.
EXCEPTIONS = {
    "asyncssh": "EPL-2.0 or GPL-2.0-or-later: we choose EPL-2.0; optional (extra sftp)",
    "axe-playwright-python": "MIT, as its license file says, with axe-core under MPL-2.0; tests only",
    "cuda-bindings": "NVIDIA's license: libraries of torch for GPUs, which users install from NVIDIA's packages",
    "docutils": "public domain and BSD; its GPL file is an Emacs mode; checks of a release only",
    "mergedeep": "MIT, as its classifier says; documentation only",
    "psycopg": "LGPL-3.0: used unmodified as a library; optional (extra postgres)",
    "psycopg-binary": "LGPL-3.0: used unmodified as a library; optional (extra postgres)",
    "ptyprocess": "ISC, as its classifier says; tests only",
    "pyte": "LGPL-3.0: tests only",
    "python-dateutil": "Apache-2.0 and BSD-3-Clause, as its classifiers say",
    "regex": "Apache-2.0 and CNRI-Python, the license of Python 1.6; optional (extra inference-huggingface)",
    "skops": "MIT, as its license file says; optional (extra inference-sklearn)",
    "zope-event": "ZPL-2.1: a dependency of tritonclient; tests only",
    "zope-interface": "ZPL-2.1: a dependency of tritonclient; tests only",
    "cuda-toolkit": "NVIDIA's license: see cuda-bindings",
}
#: Packages of NVIDIA with its license for CUDA libraries: dependencies of torch on Linux, never part of our files.
_CUDA = re.compile(r"(nvidia|cuda)-(?!ml-py).*")
_PIN = re.compile(r"^([A-Za-z0-9._-]+==[^\s;]+(?: *;[^\\\n]*)?)(.*)$")


def license_of(package: Distribution) -> list[str]:
    """Return the licenses that a package states: its SPDX expression, else its license text, else its classifiers."""
    about = package.metadata
    text = about.get("License-Expression") or ""
    if text:
        return [part.strip(" ()") for part in re.split(r" AND | OR ", text)]
    named = [one.rpartition(" :: ")[2] for one in about.get_all("Classifier") or [] if one.startswith("License ::")]
    short = (about.get("License") or "").strip()
    return [one for one in named if one not in ("OSI Approved", "DFSG approved")] or re.split(r" AND | OR ", short)


def licenses() -> Iterator[tuple[str, str, bool]]:
    """Yield name, license and whether it is allowed, for every installed package except this one, and for every file
    of another maker in this one."""
    for one in _vendored():
        yield f"{one['package']} {one['file']}", one["license"], one["license"].lower() in ALLOWED
    for package in sorted(distributions(), key=lambda one: one.metadata["Name"].lower()):
        name = canonicalize_name(package.metadata["Name"])
        if name == "dlicmd":
            continue
        found = license_of(package)
        if name in EXCEPTIONS or _CUDA.fullmatch(name):
            yield name, EXCEPTIONS.get(name, "NVIDIA's license"), True
        else:
            yield name, " and ".join(found), bool(found) and all(one.lower() in ALLOWED for one in found)


def _vendored() -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(VENDORED.read_text(encoding="utf-8"))
    return found


def changed_files() -> Iterator[str]:
    """Yield a sentence for each file of another maker that is not the one in the list, or has no license beside it."""
    folder = VENDORED.parent
    for one in _vendored():
        content = (folder / one["file"]).read_bytes()
        if hashlib.sha256(content).hexdigest() != one["sha256"]:
            yield f"{one['file']} is not the file of {one['package']} {one['version']}: its checksum differs"
        if not (folder / f"{one['package'].partition('.')[0]}.LICENSE").is_file():
            yield f"{one['file']} has no license beside it"


def pins(file: Path) -> list[tuple[Requirement, int]]:
    """Return the exact requirements of a file, each with the number of its hashes."""
    found: list[tuple[Requirement, int]] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if match := _PIN.match(line):
            found.append((Requirement(match[1].strip()), 0))
        elif "--hash=sha256:" in line:
            found[-1] = (found[-1][0], found[-1][1] + 1)
    return found


def on(python: str, found: list[tuple[Requirement, int]], machine: str = "x86_64") -> dict[str, str]:
    """Return name → version of the requirements that count on Linux with this version of CPython."""
    place = {
        "python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux", "os_name": "posix",
        "platform_system": "Linux", "platform_machine": machine, "implementation_name": "cpython",
        "platform_python_implementation": "CPython", "extra": "",
    }
    return {canonicalize_name(one.name): str(one.specifier)
            for one, _ in found if one.marker is None or one.marker.evaluate(place)}


def disagreements() -> Iterator[str]:
    """Yield a sentence for each way in which the hashed file differs from constraints.txt and setup.cfg."""
    hashed, exact = pins(HASHED), pins(CONSTRAINTS)
    yield from (f"{one} has no hash" for one, hashes in hashed if not hashes)
    needed = {canonicalize_name(Requirement(line).name) for line in _needed()}
    for python in PYTHONS:
        ours, theirs = on(python, hashed), on(python, exact)
        yield from (f"Python {python}: {name} is missing" for name in sorted(needed - ours.keys()))
        yield from (f"Python {python}: {name}{version}, but constraints.txt has {name}{theirs[name]}"
                    for name, version in ours.items() if theirs.get(name, version) != version)


def _needed() -> list[str]:
    """Return the lines of `install_requires` in setup.cfg that count on Linux."""
    text = (ROOT / "setup.cfg").read_text(encoding="utf-8")
    block = re.search(r"^install_requires =\n((?:    .*\n|#.*\n)+)", text, re.MULTILINE)
    assert block is not None
    lines = [line.strip() for line in block[1].splitlines() if line.startswith("    ")]
    return [line for line in lines if canonicalize_name(Requirement(line).name) in on("3.12", [(Requirement(line), 0)])]


def lock() -> None:
    """Write the hashed file: the versions of constraints.txt, and those that the index has for other packages."""
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "compile", "-q", "--universal", "--python-version", PYTHONS[0],
         "--generate-hashes", "--no-annotate", "--custom-compile-command", "python .ci/supply.py lock",
         "-c", str(CONSTRAINTS), str(ROOT / "setup.cfg"), "-o", str(HASHED)],
        check=True, cwd=ROOT,
    )


def main(word: str) -> None:
    """Do what the word says."""
    if word == "lock":
        lock()
    if word == "check" and (wrong := list(changed_files())):
        sys.exit("\n".join(["supply: vendored files differ from vendored.json", *wrong]))
    if word in ("lock", "check"):
        wrong = list(disagreements())
        if wrong:
            sys.exit("\n".join(["supply: constraints-hashed.txt is stale: run python .ci/supply.py lock", *wrong]))
        print(f"supply: constraints-hashed.txt agrees with constraints.txt for Python {', '.join(PYTHONS)}")
    elif word == "licenses":
        found = list(licenses())
        for name, text, _ in found:
            print(f"{name}: {text}")
        wrong = [f"{name}: {text or 'no license'}" for name, text, allowed in found if not allowed]
        if wrong:
            sys.exit("\n".join(["supply: licenses that are unknown or not allowed", *wrong]))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:2] or [""])
