"""Logons, users and connections."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from typing_extensions import NotRequired, TypedDict

from dlicmd.contract import wire
from local_backend.api.models.common import Body, Known, Refusal, Time, described, one_of
from local_backend.store import users


@described
class LoggedOn(TypedDict):
    """A token and the claims about its user."""

    username: str
    """Name of the user"""
    role: Annotated[str, one_of("Admin", "User")]
    """Role of the user"""
    permissions: list[str]
    """Permissions of the user"""
    groups: list[str]
    """Always empty"""
    sub: str
    """Name of the user"""
    iss: str
    """Always `KNOXSSO`"""
    aud: str
    """Always `DSX`"""
    uid: str
    """Name of the user"""
    authenticator: str
    """Always `default`"""
    iat: NotRequired[int]
    """Time of the logon in epoch seconds; absent for the token of the server"""
    exp: NotRequired[int]
    """Time until which the token is valid in epoch seconds; absent for the token of the server"""
    accessToken: str
    """The token"""
    messageCode: str
    """Always `success`"""
    message: str
    """Always `success`"""


@described
class LoggedOff(TypedDict):
    """The answer to a logoff."""

    username: str
    """Name of the user"""
    messageCode: str
    """Always `success`"""
    message: str
    """A sentence"""


@described
class PlatformToken(TypedDict):
    """The answer to a logon in the form of IBM Cloud Pak for Data."""

    _messageCode_: str
    """Always `200`"""
    message: str
    """Always `Success`"""
    token: str
    """The token"""


@described
class OidcIssuer(TypedDict):
    """The issuer of OIDC logons."""

    issuer: str
    """URL of the issuer"""
    clientId: str
    """ID of the client at the issuer"""
    scopes: str
    """Scopes for the issuer, separated by spaces"""


_ROLE = one_of(*users.ROLES)
_SCOPE = one_of("read", "submit", "admin", "inference")


@described
class UserObject(TypedDict):
    """A user."""

    name: str
    """Name of the user"""
    role: Annotated[str, _ROLE]
    """Role of the user"""
    created: Time
    """Time at which the user was added"""
    subject: NotRequired[Known[str]]
    """Account of the OIDC issuer that logs on as this user: issuer, space, subject"""


@described
class NewUser(TypedDict):
    """A user to add."""

    name: str
    """Name of the user"""
    password: str
    """Password"""
    role: Annotated[str, _ROLE]
    """Role of the user"""


@described
class NewRole(TypedDict):
    """A role for a user."""

    role: Annotated[str, _ROLE]
    """The role"""


@described
class NewSubject(TypedDict):
    """An account of the OIDC issuer."""

    subject: str
    """Its subject"""


@described
class NewPassword(TypedDict):
    """A new password."""

    password: str
    """The new password"""
    oldPassword: NotRequired[str]
    """The present password; required for users who are not administrators"""


@described
class TokenObject(TypedDict):
    """A token for a program, without its text."""

    id: str
    """ID of the token"""
    name: str
    """Name of the token"""
    user: str
    """User that the token acts for"""
    scope: Annotated[str, _SCOPE]
    """Calls that the token permits"""
    created: Time
    """Time at which the token was made"""
    expires: Time
    """Time until which the token is valid"""


@described
class CreatedToken(TokenObject):
    """A new token for a program."""

    token: str
    """The token"""


@described
class ConnectionObject(TypedDict):
    """A connection without its secrets."""

    id: str
    """ID of the connection"""
    name: str
    """Name of the connection"""
    type: str
    """Kind of the connection"""
    owner: str
    """User who owns the connection"""
    sharedWith: Literal["everybody"] | list[str]
    """Other users who may use the connection"""
    values: dict[str, Any]
    """Values that are not secret"""
    secrets: dict[str, str]
    """Secret → `sealed`, `env:NAME` or `keyring:SERVICE/USER`; empty for other users than the owner"""
    fromFile: bool
    """Whether the connection is in the file of `--connections`"""
    created: str
    """Time at which the connection was added, empty if unknown"""


@described
class TestResult(TypedDict):
    """The result of a test."""

    ok: bool
    """Whether the server behind the connection accepts it"""
    message: NotRequired[Known[str]]
    """Why not"""


def _named(name: str) -> str:
    if not users.is_name(name):
        raise ValueError(name)
    return name


def _text_at(key: str) -> Refusal:
    return Refusal(f'The body must be a JSON object with a string "{key}"')


class PlatformLogon(Body):
    """User and password, or user and API key."""

    username: Annotated[str, _text_at("username")]
    """Name of the user"""
    password: Annotated[str | None, _text_at("password")] = None
    """Password"""
    api_key: Annotated[str | None, _text_at("api_key")] = None
    """The password under another name; counts if `password` is absent"""


@described
class ConsoleLink(TypedDict):
    """A link that opens the console once."""

    url: str
    """Address to open in a browser"""
    seconds: int
    """Seconds for which the link is valid"""


class OidcLogon(Body):
    """A token of the OIDC issuer."""

    token: Annotated[str, _text_at(wire.OIDC_TOKEN)]
    """ID token, or access token in the form of a JWT"""
    nonce: Annotated[str | None, _text_at(wire.NONCE)] = None
    """The nonce that the client sent to the issuer; required if the token contains one"""


class NewToken(Body):
    """A token for a program to make."""

    name: Annotated[str, _text_at(wire.NAME)]
    """Name of the token, which records of its calls contain"""
    scope: Annotated[str, _text_at(wire.SCOPE), _SCOPE]
    """`read`: calls that change nothing. `submit`: also submit, check, verify and stop own execs, and deploy, start and
    stop own models. `admin`: all calls of an administrator; only administrators have such tokens. `inference`: only
    requests to models"""
    expiresIn: Annotated[int, Refusal(f'"{wire.EXPIRES_IN}" must be a whole number of seconds')]
    """Seconds until the token expires"""
    user: Annotated[str | None, _text_at(wire.USER)] = None
    """User that the token acts for, by default the caller"""


@described
class KindField(TypedDict):
    """A value of a connection."""

    name: str
    """Name of the value"""
    help: str
    """Its meaning"""
    required: bool
    """Whether each connection needs it"""
    secret: bool
    """Whether the server never shows it"""


@described
class KindObject(TypedDict):
    """A kind of connection."""

    name: str
    """The `type` of a connection"""
    title: str
    """Name for users"""
    fields: list[KindField]
    """Values of a connection"""


class ConnectionChange(Body):
    """New values of a connection."""

    values: Annotated[dict[str, Any], Refusal(f'"{wire.VALUES}" is not a JSON object')] = Field(default_factory=dict)
    """Values of the kind. Secrets that are absent stay as they are, if all other values do"""
    sharedWith: Annotated[
        Literal["everybody"] | Annotated[list[Annotated[str, AfterValidator(_named)]], Field(max_length=1000)],
        Refusal(f'"{wire.SHARED_WITH}" must be "{wire.EVERYBODY}" or a list of users'),
    ] = Field(default_factory=list)
    """Other users who may use the connection, or `everybody`"""


class NewConnection(Body):
    """A connection to add."""

    name: Annotated[str, _text_at(wire.NAME)]
    """Name of the connection"""
    type: Annotated[str, _text_at(wire.TYPE)]
    """Kind of the connection"""
    values: Annotated[dict[str, Any], Refusal(f'"{wire.VALUES}" is not a JSON object')] = Field(default_factory=dict)
    """Values of the kind. A secret may be {"env": NAME} or {"keyring": "SERVICE/USER"} of the server"""
    sharedWith: Annotated[
        Literal["everybody"] | Annotated[list[Annotated[str, AfterValidator(_named)]], Field(max_length=1000)],
        Refusal(f'"{wire.SHARED_WITH}" must be "{wire.EVERYBODY}" or a list of users'),
    ] = Field(default_factory=list)
    """Other users who may use the connection, or `everybody`"""
    replace: Annotated[bool, BeforeValidator(lambda value: value is True)] = False
    """Whether to replace the caller's own connection of this name"""
