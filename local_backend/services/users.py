"""Users of a server with several users: administrators add and remove users, and users may change their own
passwords."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from local_backend.errors import Conflict, Invalid, NotFound
from local_backend.files import remove_tree
from local_backend.services.access import Caller
from local_backend.services.base import Base
from local_backend.services.oidc import identity
from local_backend.store import users
from local_backend.store.users import LastAdmin, NoSuchUser, UserError, UserExists, UserRow

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class UserService:
    """Operations on users."""

    base: Base

    def list(self, caller: Caller) -> list[UserRow]:
        """Return all users by name. Raises Denied."""
        caller.check_admin("list users")
        return self.base.database.read(users.everybody)

    def add(self, caller: Caller, name: object, password: object, role: object) -> None:
        """Add a user. Raises Denied, Invalid (`user.role`, `user.invalid`), Conflict (`user.exists`)."""
        with self.base.recorded(caller, "user.add", *([name] if isinstance(name, str) else [])):
            caller.check_admin("add users")
            name, password, role = _text(name, "name"), _text(password, "password"), _text(role, "role")
            self._check_role(name, role)
            self._change(lambda c, kept: users.add(c, users.checked_name(name), kept, role), password)

    def set_role(self, caller: Caller, name: str, role: object) -> None:
        """Change the role of a user. Raises Denied, Invalid (`user.role`, `user.invalid`), NotFound
        (`user.not_found`), Conflict (`user.last_admin`)."""
        with self.base.recorded(caller, "user.role", name):
            caller.check_admin("change the roles of users")
            role = _text(role, "role")
            self._check_role(name, role)
            try:
                self.base.database.write(lambda c: users.change_role(c, name, role, self.base.settings.user))
            except NoSuchUser as problem:
                raise NotFound("user.not_found", str(problem)) from None
            except LastAdmin as problem:
                raise Conflict("user.last_admin", str(problem)) from None
        # An administrator may use the connections of all users: the jobs of this user are checked again.
        self.base.wake()

    def _check_role(self, name: str, role: str) -> None:
        if role not in users.ROLES:
            raise Invalid("user.role", f"role: unknown role {role[:40]!r}; use {' or '.join(users.ROLES)}")
        if name == self.base.settings.user and role != users.ADMIN:
            raise Invalid("user.role", f"role: the server runs as {name}, so {name} is always {users.ADMIN}")

    def set_password(self, caller: Caller, name: str, password: object) -> None:
        """Change a user's password and revoke all tokens of this user. For users who change their own password, the
        caller of this method has already checked the old one. Raises Denied, Invalid (`user.invalid`), NotFound
        (`user.not_found`)."""
        with self.base.recorded(caller, "user.password", name):
            if caller.name != name:
                caller.check_admin("change the passwords of other users")
            self._change(lambda c, kept: users.set_password(c, name, kept), _text(password, "password"))

    def link(self, caller: Caller, name: str, subject: object) -> None:
        """Let the account of the OIDC issuer with this subject log on as a user. Raises Denied, Invalid
        (`user.invalid`, `oidc.off`), NotFound (`user.not_found`), Conflict (`user.exists`)."""
        with self.base.recorded(caller, "user.link", name) as record:
            caller.check_admin("link users with accounts")
            issuer = self.base.settings.oidc.issuer
            if issuer is None:
                raise Invalid("oidc.off", "This server has no OIDC logons; set DLI_OIDC_ISSUER")
            account = identity(issuer, _text(subject, "subject"))
            record.about.append(account)
            try:
                self.base.database.write(lambda c: users.link(c, name, account))
            except NoSuchUser as problem:
                raise NotFound("user.not_found", str(problem)) from None
            except UserExists as problem:
                raise Conflict("user.exists", str(problem)) from None

    def remove(self, caller: Caller, name: str) -> None:
        """Remove a user and revoke all tokens of this user. Remove the Python environment of the user's jobs, too.
        Execs and results stay. Raises Denied, NotFound
        (`user.not_found`), Conflict (`user.last_admin`)."""
        with self.base.recorded(caller, "user.remove", name):
            caller.check_admin("remove users")
            try:
                self.base.database.write(lambda c: users.remove(c, name, self.base.settings.user))
            except NoSuchUser as problem:
                raise NotFound("user.not_found", str(problem)) from None
            except LastAdmin as problem:
                raise Conflict("user.last_admin", str(problem)) from None
        # A removed administrator could use the connections of all users: the jobs of this user are checked again.
        self.base.wake()
        try:
            remove_tree(self.base.settings.paths.user(name))
        except OSError as problem:
            _log.error("cannot remove the Python environment of %s, remove the folder: %s", name, problem)

    def _change(self, work: Callable[[Connection, str], None], password: str) -> None:
        """Do `work` in a transaction, with the hash of the password."""
        from local_backend.password_hash import hashed  # loads argon2, which most calls do not need

        try:
            kept = hashed(users.checked_password(password))
            self.base.database.write(lambda connection: work(connection, kept))
        except NoSuchUser as problem:
            raise NotFound("user.not_found", str(problem)) from None
        except UserExists as problem:
            raise Conflict("user.exists", str(problem)) from None
        except UserError as problem:
            raise Invalid("user.invalid", str(problem)) from None


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise Invalid("user.invalid", f'"{name}" must be a string')
    return value
