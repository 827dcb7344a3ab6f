"""Runtimes: the environments that kernels run in. Every server has those of its own Python; users add others."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from local_backend.errors import AccessDenied, Conflict, Invalid, NotFound, OverQuota
from local_backend.fields import Fields, shown
from local_backend.inference.description import BUILT_IN
from local_backend.inference.profile import variables
from local_backend.services.access import Caller, caller_named
from local_backend.services.base import Base
from local_backend.store import models
from local_backend.store.models import RuntimeRow
from local_backend.submit import conda

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
#: Names that WMLA gives to the Python of its own environment, in all its versions.
_OWN_PYTHON = re.compile(r"dlipy[0-9][a-z0-9-]*|python[0-9.]*|condaenv")
#: The most runtimes of a user.
_MOST = 100
#: The launchers of WMLA: kernels in Python, which the kernel program of this server starts.
_PYTHON = "python_launcher.sh"
_KNOWN = ("schema_version", "type", "name", "launcher", "conda_home", "conda_env_name", "docker_img", "pre_exec",
          "machine_type", "description", "epoch_created", "epoch_updated", "envs", "attributes", "command")


@dataclass(frozen=True)
class ResolvedRuntime:
    """How the kernels of a model start: in a Python environment (None: the server's own), or with a command."""

    conda_env: str | None = None
    command: tuple[str, ...] | None = None
    environment: dict[str, str] | None = None


@dataclass(frozen=True)
class RuntimeService:
    """Operations on runtimes. A runtime belongs to the user who made it. It decides which program runs as a kernel,
    with the rights of the owner of the model. So users use their own runtimes, and those of administrators."""

    base: Base

    def list(self, caller: Caller) -> list[RuntimeRow]:
        """Return the runtimes that the caller may use, for an administrator all: first the built-in ones, then the
        others by name."""
        return [_built_in(name) for name in BUILT_IN] + self.base.database.read(
            lambda c: [row for row in models.all_runtimes(c) if caller.admin or self._may_use(c, caller.name, row)])

    def find(self, caller: Caller, name: str) -> RuntimeRow:
        """Return a runtime that the caller may use; for an administrator, any. Raises NotFound
        (`runtime.not_found`)."""
        row = self.base.database.read(lambda c: models.runtime(c, name)) if caller.admin else None
        return row or self.usable(caller.name, name)

    def usable(self, user: str, name: str) -> RuntimeRow:
        """Return the runtime for the models of a user. Raises NotFound (`runtime.not_found`)."""
        def work(connection: Connection) -> RuntimeRow | None:
            row = models.runtime(connection, name)
            return row if row is not None and self._may_use(connection, user, row) else None

        row = self.base.database.read(work)
        if row is None and (name in BUILT_IN or _OWN_PYTHON.fullmatch(name)):
            return _built_in(name)
        if row is None:
            known = ", ".join(one.name for one in self.list(Caller(user, False)))
            raise NotFound("runtime.not_found", f"Runtime {shown(name)} does not exist, or belongs to another user who "
                                                f"is not an administrator; runtimes are {known}. Make one with dlim "
                                                "runtime create, or name one of these in model.json")
        return row

    def _may_use(self, connection: Connection, user: str, row: RuntimeRow) -> bool:
        creator = None if row.creator == user else caller_named(connection, row.creator, self.base.settings)
        return row.creator == user or (creator is not None and creator.admin)

    def create(self, caller: Caller, given: object) -> RuntimeRow:
        """Add a runtime. Raises Invalid (`runtime.invalid`), Conflict (`runtime.exists`), OverQuota
        (`quota.models`)."""
        with self.base.recorded(caller, "runtime.create") as record:
            name, value = _read(given, None)
            record.about.append(name)

            def work(connection: Connection) -> RuntimeRow:
                if name in BUILT_IN or models.runtime(connection, name) is not None:
                    raise Conflict("runtime.exists", f"Runtime {name} already exists")
                if models.count_of_runtimes(connection, caller.name) >= _MOST:
                    raise OverQuota("quota.models", f"{caller.name} has {_MOST} runtimes, which is the limit. Delete "
                                                    "some")
                return models.add_runtime(connection, name, caller.name, json.dumps(value))

            return self.base.database.write(work)

    def change(self, caller: Caller, name: str, given: object) -> RuntimeRow:
        """Replace a runtime. Models that are started keep the former one until their next start. Raises NotFound,
        AccessDenied (`runtime.of_another_user`), Invalid (`runtime.invalid`)."""
        with self.base.recorded(caller, "runtime.change", name):
            _, value = _read(given, name)

            def work(connection: Connection) -> RuntimeRow:
                _owned(connection, caller, name)
                models.change_runtime(connection, name, json.dumps(value))
                return _owned(connection, caller, name)

            return self.base.database.write(work)

    def delete(self, caller: Caller, name: str) -> None:
        """Remove a runtime that no model uses. Raises NotFound, AccessDenied (`runtime.of_another_user`), Conflict
        (`runtime.in_use`)."""
        with self.base.recorded(caller, "runtime.delete", name):
            def work(connection: Connection) -> None:
                creator = _owned(connection, caller, name).creator
                for row in models.all_models(connection):
                    if any(one.model_json.get("runtime") == name
                           for one in models.revisions_of(connection, row.number)):
                        what = f"the model {row.name}" if caller.admin or row.creator == creator else "another model"
                        raise Conflict("runtime.in_use", f"Runtime {name} is in use by {what}")
                models.remove_runtime(connection, name)

            self.base.database.write(work)

    def resolved(self, user: str, name: str) -> ResolvedRuntime:
        """Return how the kernels of a user start in a runtime. Raises NotFound, Invalid
        (`submission.environment`)."""
        value = json.loads(self.usable(user, name).description)
        section = Fields(value, "the runtime", _refuse)
        env_name = value.get("conda_env_name") or None
        return ResolvedRuntime(
            conda.find(env_name, value.get("conda_home") or None), _command(section),
            variables(section.list("envs", most=500), section, "envs"))


def _refuse(sentence: str) -> Invalid:
    return Invalid("runtime.invalid", sentence)


def _read(given: object, name: str | None) -> tuple[str, dict[str, Any]]:
    """Return name and description of a runtime in a request. Raises Invalid (`runtime.invalid`)."""
    top = Fields(given, "the runtime", _refuse)
    top.check_names(_KNOWN)
    found = top.required("type", "name", most=63)
    if not _NAME.fullmatch(found):
        raise top.refuse("type", "must have 1 to 63 letters, digits, '.', '_' or '-', and begin and end with a letter "
                                 f"or digit, but it is {shown(found)}")
    if name is not None and found != name:
        raise top.refuse("type", f"must be {name}, the name of the runtime, but it is {shown(found)}")
    for key in ("launcher", "conda_home", "conda_env_name", "docker_img", "pre_exec", "machine_type", "description"):
        top.text(key)
    if top.get("docker_img"):
        raise top.refuse("docker_img", f"must be empty, because this server runs no containers, but it is "
                                       f"{shown(top.get('docker_img'))}")
    if top.get("pre_exec"):
        raise top.refuse("pre_exec", "must be empty; put its commands into a script that `command` names")
    _command(top)
    variables(top.list("envs", most=500), top, "envs")
    assert isinstance(given, Mapping)
    return found, {**given, "type": found}


def _command(section: Fields) -> tuple[str, ...] | None:
    """Return the command of a runtime that speaks the kernel protocol; None for kernels in Python."""
    given = section.get("command")
    if isinstance(given, str):
        try:
            given = shlex.split(given)
        except ValueError:
            raise section.refuse("command", f"must be a command line, but its quotes do not match: {shown(given)}"
                                 ) from None
    if given is not None:
        if not isinstance(given, list) or not given or not all(isinstance(word, str) and word for word in given):
            raise section.refuse("command", f"must be a command: a text, or a list of words, but it is {shown(given)}")
        return tuple(given)
    launcher = section.text("launcher") or ""
    return None if not launcher or launcher.endswith(_PYTHON) else (launcher,)


def _owned(connection: Connection, caller: Caller, name: str) -> RuntimeRow:
    row = models.runtime(connection, name)
    if row is None:
        raise NotFound("runtime.not_found", f"Runtime {name[:63]} does not exist")
    if not (caller.admin or row.creator == caller.name):
        raise AccessDenied("runtime.of_another_user", f"Runtime {name} belongs to {row.creator}; you may not change it")
    return row


def _built_in(name: str) -> RuntimeRow:
    value = {
        "schema_version": "1", "type": name,
        "launcher": "${REDHARE_TOP}/${REDHARE_VERSION}/script/" + _PYTHON, "conda_home": "", "conda_env_name": "",
        "docker_img": "", "pre_exec": "", "machine_type": "x86_64,ppc64le,aarch64",
        "description": "The Python environment of the server", "envs": [], "attributes": [],
    }
    return RuntimeRow(name, "", json.dumps(value), 0.0, 0.0)
