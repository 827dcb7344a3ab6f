"""The systemd unit in docs: systemd accepts it, and a restart of the service leaves jobs running."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from local_backend.cli import main
from local_backend.settings import TABLE

pytestmark = pytest.mark.integration

UNIT = Path(__file__).parent.parent / "docs" / "local-backend.service"


def service() -> list[tuple[str, str]]:
    """Return every setting of [Service] as (key, value)."""
    section = UNIT.read_text(encoding="utf-8").partition("[Service]\n")[2].partition("\n[")[0]
    lines = [line for line in section.splitlines() if line and not line.startswith("#")]
    return [(line.partition("=")[0], line.partition("=")[2]) for line in lines]


def test_the_unit_has_its_three_sections() -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read(UNIT)
    assert parser.sections() == ["Unit", "Service", "Install"]


def test_jobs_outlive_a_restart() -> None:
    found = dict(service())
    assert found["KillMode"] == "process" and found["OOMPolicy"] == "continue"
    assert "PrivateTmp" not in found and "PrivateDevices" not in found


def test_the_unit_lets_jobs_have_sandboxes() -> None:
    found = dict(service())
    assert found["RestrictNamespaces"] == "user mnt pid ipc" and "@mount" in found["SystemCallFilter"]
    # Each mounts something in /proc. The kernel then permits no other /proc in a user namespace.
    assert not {"ProtectHostname", "ProtectKernelLogs", "ProtectKernelTunables", "ProcSubset"} & found.keys()


def test_the_unit_names_only_existing_variables_and_commands() -> None:
    variables = {name for key, value in service() if key == "Environment" for name in re.findall(r"(DLI\w+)=", value)}
    assert variables <= {setting.variable for setting in TABLE} and len(variables) > 4
    command = dict(service())["ExecStart"].split()[1:]
    assert command == ["serve"] and "serve" in main.commands


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = UNIT.read_text(encoding="utf-8")
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace("/opt/dlicmd/bin/local-backend", sys.executable), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and copy.name not in done.stderr, done.stderr
    # Sandboxes of jobs need namespaces and mounts, which cost 6 points.
    rated = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--threshold=32", copy],
                           capture_output=True, text=True, check=False)
    assert rated.returncode == 0, rated.stdout[-400:]
