"""Logons with the accounts of an OIDC issuer: a token of the issuer is exchanged for a token of this server.

An account is identified by `ISSUER SUBJECT`, which never changes, and not by a name, which users may change at some
issuers. A user that exists already is never taken over because an account has the same name: an administrator links the
two.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sqlalchemy import Connection

from local_backend.audit import RefusedCounts
from local_backend.errors import AccessDenied, BackendError, NotFound
from local_backend.oidc import OidcTokens, claim
from local_backend.services.access import Caller
from local_backend.services.base import Base
from local_backend.services.logons import Logon, LogonService
from local_backend.settings import OidcSettings
from local_backend.store import users
from local_backend.store.users import UserRow, is_name

_ACTION = "auth.oidc"
#: What is stored in place of the hash of a password, which no password fits.
_NO_PASSWORD = "none"


@dataclass(frozen=True)
class Account:
    """An account of the issuer: its identity, its name, and whether its claims make an administrator. None: the claims
    say nothing about the role."""

    subject: str
    name: str
    admin: bool | None


@dataclass(frozen=True)
class OidcService:
    """Exchanges tokens of the issuer."""

    base: Base
    logons: LogonService
    refused: RefusedCounts
    tokens: OidcTokens

    @property
    def settings(self) -> OidcSettings:
        """The settings. Raises NotFound (`oidc.off`) if this server has no OIDC logons."""
        found = self.base.settings.oidc
        if found.issuer is None or self.base.settings.embedded:
            raise NotFound("oidc.off", "This server has no OIDC logons; an administrator can set DLI_OIDC_ISSUER")
        return found

    async def logon(self, token: str, nonce: str | None, address: str) -> Logon:
        """Make a token of this server for the account of a token of the issuer, and record the logon.

        Raises Unauthorized (`oidc.token`), Denied (`oidc.*`), NotFound (`oidc.off`), Unavailable (`oidc.issuer`),
        StorageFailed (`auth.no_keys`).
        """
        settings, name = self.settings, ""
        try:
            account = _account(settings, await self.tokens.claims(token, nonce))
            name = account.name
            caller = await asyncio.to_thread(self.base.database.write, lambda c: self._user(c, account, address))
        except BackendError as problem:
            self.refused.note(name, address, _ACTION, problem.code)
            raise
        made = await asyncio.to_thread(self.logons.issue, caller)
        self.base.note(caller, _ACTION, [account.subject], "done", None)
        return made

    def _user(self, connection: Connection, account: Account, address: str) -> Caller:
        """Return the user of an account, after an update of the role. Make the user if the settings permit that."""
        row = users.with_subject(connection, account.subject) or self._new(connection, account)
        role = row.role if account.admin is None else users.ADMIN if account.admin else users.USER
        if role != row.role:
            users.set_role(connection, row.name, role)
        return Caller(row.name, role == users.ADMIN, address)

    def _new(self, connection: Connection, account: Account) -> UserRow:
        if not is_name(account.name):
            raise AccessDenied("oidc.name", f"The claim {self.settings.user_claim} contains no valid user name: "
                                            f"{account.name[:64]!r}")
        if account.name == self.base.settings.user or users.get(connection, account.name) is not None:
            sentence = (f"A user {account.name} exists, and this account is not linked with it; ask an administrator "
                        f"to run: local-backend user link {account.name} SUBJECT")
            raise AccessDenied("oidc.collision", sentence)
        if not self.settings.create_users:
            sentence = (f"This account has no user on this server; ask an administrator to add {account.name} and to "
                        "link the account with it")
            raise AccessDenied("oidc.unknown_user", sentence)
        users.add(connection, account.name, _NO_PASSWORD, users.USER, account.subject)
        row = users.get(connection, account.name)
        assert row is not None
        return row


def identity(issuer: str, subject: str) -> str:
    """Return the identity of an account."""
    return f"{issuer} {subject}"


def _account(settings: OidcSettings, claims: dict[str, object]) -> Account:
    """Return the account that claims describe. Raises Denied (`oidc.name`)."""
    subject, name = claim(claims, settings.subject_claim), claim(claims, settings.user_claim)
    if not isinstance(subject, str | int) or not str(subject) or len(str(subject)) > 255:
        raise AccessDenied("oidc.name", f"The token has no claim {settings.subject_claim}")
    admin = None
    if settings.admin_claim is not None:
        found = claim(claims, settings.admin_claim)
        values = found if isinstance(found, list) else [found]
        admin = any(value in settings.admin_values for value in values)
    return Account(identity(str(settings.issuer), str(subject)), name if isinstance(name, str) else "", admin)
