"""Tokens for programs: each has a name, a scope and an end, and acts for one user."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from local_backend.errors import AccessDenied, Conflict, Invalid, NotFound
from local_backend.services.access import ADMIN, SCOPES, Caller, caller_named
from local_backend.services.base import Base
from local_backend.store import tokens
from local_backend.store.tokens import TokenRow
from local_backend.store.users import is_name

_SHORTEST = 60
_DAY = 86_400
#: Maximum number of tokens of a user.
_MOST = 100


@dataclass(frozen=True)
class TokenService:
    """Operations on tokens for programs. Users manage their own, administrators those of all users."""

    base: Base

    def list(self, caller: Caller, user: str | None = None) -> list[TokenRow]:
        """Return the tokens of a user, by default of the caller, oldest first. Raises Denied."""
        user = self._user(caller, user, "list tokens of other users")
        return self.base.database.read(lambda c: tokens.of_programs(c, user))

    def create(
        self, caller: Caller, name: str, scope: str, seconds: int, user: str | None = None
    ) -> tuple[TokenRow, str]:
        """Make a token, and return it with its text, which nothing stores.

        Raises Denied, Invalid (`token.invalid`), NotFound (`user.not_found`), Conflict (`token.exists`,
        `token.too_many`).
        """
        with self.base.recorded(caller, "token.create", name) as record:
            user = self._user(caller, user, "create tokens for other users")
            record.about.append(user)
            most = self.base.settings.api_token_days * _DAY
            if not is_name(name):
                raise Invalid("token.invalid", f"{name[:64]!r} is not a valid name; use 1 to 64 of A-Z a-z 0-9 . _ @ "
                                               "-, and do not begin with . @ -")
            if scope not in SCOPES:
                raise Invalid("token.invalid", f"scope: unknown scope {scope[:40]!r}; use {', '.join(SCOPES)}")
            if not _SHORTEST <= seconds <= most:
                raise Invalid("token.invalid", f"A token is valid for at least {_SHORTEST} seconds and at most "
                                               f"{self.base.settings.api_token_days} days")

            def make(connection: Connection) -> tuple[TokenRow, str]:
                owner = caller_named(connection, user, self.base.settings)
                if owner is None:
                    raise NotFound("user.not_found", f"There is no user {user[:64]!r}")
                if scope == ADMIN and not owner.admin:
                    raise AccessDenied("auth.admin_only", f"Only an administrator has tokens with the scope {ADMIN}; "
                                                          f"{user} is not an administrator")
                present = tokens.of_programs(connection, user)
                if any(row.name == name for row in present):
                    raise Conflict("token.exists", f"{user} already has a token {name}; revoke it, or use another name")
                if len(present) >= _MOST:
                    raise Conflict("token.too_many", f"{user} has {_MOST} tokens; revoke one")
                return tokens.make(connection, user, name, scope, seconds)

            return self.base.database.write(make)

    def revoke(self, caller: Caller, name: str, user: str | None = None) -> TokenRow:
        """Revoke a token of a user, by default of the caller, by its name or id, and return it. Raises Denied, NotFound
        (`token.not_found`)."""
        with self.base.recorded(caller, "token.revoke", name):
            user = self._user(caller, user, "revoke tokens of other users")

            def remove(connection: Connection) -> TokenRow:
                present = tokens.of_programs(connection, user)
                found = next((row for row in present if name in (row.id, row.name)), None)
                if found is None or found.id is None:
                    raise NotFound("token.not_found", f"{user} has no token {name[:64]!r}")
                tokens.revoke_id(connection, found.id)
                return found

            return self.base.database.write(remove)

    @staticmethod
    def _user(caller: Caller, user: str | None, action: str) -> str:
        """Return the user whose tokens are meant. Raises Denied."""
        if user is not None and user != caller.name:
            caller.check_admin(action)
        return caller.name if user is None else user
