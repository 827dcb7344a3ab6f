"""Users with passwords and roles over HTTP: creation, logon, throttling, changes and removal."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import jwt
import pytest
from argon2 import PasswordHasher
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from live_server import PASSWORD, TOKEN, Answer, Live, basic, settings_for
from sqlalchemy import select

from dlicmd.contract import wire
from local_backend import password_hash
from local_backend.password_hash import hashed, matches
from local_backend.services import passwords, throttle
from local_backend.services.throttle import Throttle
from local_backend.store import schema, tokens, users

SECRET = "a long pass:wörd"
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    live = Live(settings_for(tmp_path_factory.mktemp("team") / "home", embedded=False))
    add(live, "bob", SECRET)
    yield live
    live.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "DELAY", 0.0)


@pytest.fixture
def _time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "Throttle", lambda: Throttle(lambda: 0.0))


def send(live: Live, method: str, path: str, body: object, token: str | None = TOKEN, **headers: str) -> Answer:
    return live.call(method, path, json.dumps(body).encode(), JSON | headers, token=token)


def add(live: Live, name: str, password: str, role: str = "user") -> None:
    answer = send(live, "POST", "/users", {"name": name, "password": password, "role": role})
    assert answer.status == 204, answer.text


def logon(live: Live, name: str, password: str) -> Answer:
    return live.call("GET", wire.LOGON, headers=basic(name, password), token=None, base="")


def token_of(live: Live, name: str, password: str) -> str:
    answer = logon(live, name, password)
    assert answer.status == 200, answer.text
    return str(answer.json()["accessToken"])


def opens(live: Live, token: str) -> bool:
    return live.call("GET", "/conf", token=token).status == 200


def encoded(part: bytes | dict[str, object]) -> str:
    """Return a part of a token, encoded."""
    content = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def test_a_logon_response_has_the_form_of_the_contract(team: Live) -> None:
    answer = logon(team, "bob", SECRET).json()
    token = answer["accessToken"]
    assert answer["username"] == answer["uid"] == answer["sub"] == "bob" and answer["role"] == "User"
    header = jwt.get_unverified_header(token)
    (key,) = (team.settings.home / "keys").iterdir()
    assert header["alg"] == "RS256" and f"{header['kid']}.pem" == key.name
    assert key.stat().st_mode & 0o777 == 0o600 and key.parent.stat().st_mode & 0o777 == 0o700
    claims = jwt.decode(token, options={"verify_signature": False})
    assert claims["username"] == "bob" and claims["exp"] == answer["exp"] and {"iat", "jti", "iss"} <= claims.keys()
    administrator = logon(team, "alice", TOKEN).json()
    assert administrator["role"] == "Admin" and administrator["permissions"] != answer["permissions"]


def test_a_user_is_authenticated_in_four_forms(team: Live) -> None:
    token = token_of(team, "bob", SECRET)
    for headers in ({"Authorization": f"Bearer {token}"}, {"X-Auth-Token": token}, basic("bob", token),
                    basic("bob", SECRET)):
        assert team.call("GET", "/scheduler/instances", token=None, headers=headers).json()[0]["executionUser"] == "bob"
    for headers in (basic("bob", SECRET + "x"), basic("carol", SECRET), basic("bob", PASSWORD), basic("bob", "")):
        assert team.call("GET", "/conf", token=None, headers=headers).status == 401


def test_forged_tokens_are_refused(team: Live) -> None:
    token = token_of(team, "bob", SECRET)
    header, body, signature = token.split(".")
    claims = jwt.decode(token, options={"verify_signature": False})
    kid = {"kid": jwt.get_unverified_header(token)["kid"]}
    (path,) = (team.settings.home / "keys").iterdir()
    public = load_pem_private_key(path.read_bytes(), None).public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    unsigned = f"{encoded({'alg': 'HS256', 'typ': 'JWT', **kid})}.{body}"
    confused = f"{unsigned}.{encoded(hmac.digest(pem, unsigned.encode(), 'sha256'))}"  # public key as the secret
    none, secret = jwt.encode(claims, None, "none", headers=kid), jwt.encode(claims, "s" * 64, "HS256", headers=kid)
    paths = [jwt.encode(claims, "s" * 64, "HS256", headers={"kid": name}) for name in ("../../etc/passwd", path.name)]
    other = f"{header}.{encoded(claims | {'sub': 'alice'})}.{signature}"
    for forged in (none, secret, confused, other, f"{header}.{body}.", f"{header}.{body}.{signature}x",
                   f"{header}.{body}", "a.b.c", "..", *paths):
        assert not opens(team, forged), forged
    assert opens(team, token)


def test_a_signed_token_that_was_never_issued_is_refused(team: Live) -> None:
    """A stolen signing key is not enough: the server knows the tokens that it has issued."""
    keys = team.services.logons.keys
    forged = keys.sign({"sub": "bob", "iat": 1, "exp": 2**33})
    assert keys.claims(forged) and not opens(team, forged)


def test_removal_of_a_user_removes_the_packages_of_the_user(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    folders = [live.settings.paths.user_python(name) for name in ("carol", "dave")]
    for name, folder in zip(("carol", "dave"), folders, strict=True):
        add(live, name, SECRET)
        (folder / "lib").mkdir(parents=True)
    assert live.call("DELETE", "/users/carol").status == 204
    assert not live.settings.paths.user("carol").exists() and folders[1].is_dir()


def test_logoff_password_change_and_removal_end_tokens_for_good(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    add(live, "carol", SECRET)
    one, two = token_of(live, "carol", SECRET), token_of(live, "carol", SECRET)
    assert live.call("POST", wire.LOGOFF, token=one, base="").json()["username"] == "carol"
    assert not opens(live, one) and opens(live, two)
    assert send(live, "PUT", "/users/carol/password", {"password": "another secret"}).status == 204
    assert not opens(live, two) and logon(live, "carol", SECRET).status == 401
    three = token_of(live, "carol", "another secret")
    assert live.call("DELETE", "/users/carol").status == 204
    assert not opens(live, three) and logon(live, "carol", "another secret").status == 401
    add(live, "carol", "another secret")
    assert not opens(live, three), "a new user of the same name accepts an old token"


@pytest.mark.parametrize("change", [lambda c: users.set_password(c, "bob", "other"),
                                    lambda c: users.remove(c, "bob", "alice")])
def test_a_logon_during_a_password_change_gets_no_token(
    start: Callable[..., Live], monkeypatch: pytest.MonkeyPatch, change: Callable[..., None]
) -> None:
    live = start(embedded=False)
    add(live, "bob", SECRET)
    keys = live.services.logons.keys
    sign = keys.sign
    monkeypatch.setattr(keys, "sign", lambda claims: (live.database.write(change), sign(claims))[1])
    assert logon(live, "bob", SECRET).status == 401
    assert live.database.read(lambda c: c.execute(select(schema.tokens)).all()) == []


def test_tokens_outlive_the_server_but_not_their_key(start: Callable[..., Live], tmp_path) -> None:
    live = start(embedded=False)
    token = live.add_user("bob")
    revoked = live.add_user("carol")
    live.call("POST", wire.LOGOFF, token=revoked, base="")
    live.server.should_exit = True
    live.thread.join()
    live.database.close()
    again = Live(live.settings, token="another")
    assert opens(again, token) and not opens(again, revoked) and not opens(again, TOKEN)
    again.close()
    for key in (live.settings.home / "keys").iterdir():
        key.unlink()
    fresh = Live(live.settings, token="another")
    assert not opens(fresh, token)
    fresh.close()


def test_unreadable_keys_are_named(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    (live.settings.home / "keys").mkdir()
    (live.settings.home / "keys" / "1-0123456789abcdef.pem").write_text("nonsense")
    header = encoded({"alg": "RS256", "kid": "1-0123456789abcdef"})
    for answer in (live.call("GET", "/conf", token=f"{header}.e30.eA"), logon(live, "alice", TOKEN)):
        assert answer.error == (507, "auth.no_keys") and "0123456789abcdef.pem" in answer.text
    assert live.call("GET", "/conf").status == 200


def test_only_administrators_manage_users(team: Live) -> None:
    bob, admin = token_of(team, "bob", SECRET), team.add_user("root", "admin")
    listed = team.call("GET", "/users", token=admin).json()
    assert {"name": "bob", "role": "user"}.items() <= listed[0].items()
    assert "argon2" not in json.dumps(listed)
    assert team.call("GET", "/users", token=bob).status == 403
    assert send(team, "POST", "/users", {"name": "x", "password": SECRET, "role": "admin"}, bob).status == 403
    assert team.call("DELETE", "/users/root", token=bob).status == 403
    for path in ("/users/root/password", "/users/nobody/password"):
        assert send(team, "PUT", path, {"password": "y" * 9}, bob).status == 403


def test_users_change_their_own_password(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    add(live, "bob", SECRET)
    bob = token_of(live, "bob", SECRET)
    for old in ("", "guess", TOKEN):
        body = {"password": "another secret", "oldPassword": old}
        assert send(live, "PUT", "/users/bob/password", body, bob).status == 403
    body = {"password": "another secret", "oldPassword": SECRET}
    assert send(live, "PUT", "/users/bob/password", body, bob).status == 204
    assert not opens(live, bob) and logon(live, "bob", "another secret").status == 200


@pytest.mark.parametrize(("body", "error", "word"), [
    ({"name": "bob", "password": SECRET, "role": "user"}, (409, "user.exists"), "bob"),
    ({"name": "x", "password": "short", "role": "user"}, (400, "user.invalid"), "8 to 1000"),
    ({"name": "x", "password": "with\nnewline", "role": "user"}, (400, "user.invalid"), "printable"),
    ({"name": "x", "password": SECRET, "role": "king"}, (400, "user.role"), "king"),
    ({"name": "x", "password": SECRET}, (400, "user.invalid"), "role"),
    ({"name": "alice", "password": SECRET, "role": "user"}, (400, "user.role"), "alice"),
    ({"name": 7, "password": SECRET, "role": "user"}, (400, "user.invalid"), "name"),
    ([], (400, "user.invalid"), "name"), (None, (400, "user.invalid"), "name"),
    *(({"name": name, "password": SECRET, "role": "user"}, (400, "user.invalid"), "name")
      for name in ("", ".", "..", "a/b", "../x", "a b", "a:b", "-x", "x" * 65, "é", "a\n", "a\0")),
])
def test_an_invalid_user_is_refused(team: Live, body: object, error: tuple[int, str], word: str) -> None:
    answer = send(team, "POST", "/users", body)
    assert answer.error == error and word in answer.text and SECRET not in answer.text
    assert team.database.read(lambda c: users.get(c, "x")) is None


def test_the_last_administrator_cannot_be_removed(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    add(live, "root", SECRET, "admin")
    refused = live.call("DELETE", "/users/root")
    assert refused.error == (409, "user.last_admin")
    add(live, "ada", SECRET, "admin")
    assert live.call("DELETE", "/users/root").status == 204
    assert live.call("DELETE", "/users/ada").status == 409


def test_every_user_reads_metrics(team: Live) -> None:
    for token in (token_of(team, "bob", SECRET), team.add_user("chief", "admin")):
        assert team.call("GET", "/metrics", token=token, base="").status == 200
    assert team.call("GET", "/metrics", token=None, base="").status == 401


def test_an_unknown_user_cannot_be_changed_or_removed(team: Live) -> None:
    assert send(team, "PUT", "/users/nobody/password", {"password": SECRET}).status == 404
    assert team.call("DELETE", "/users/nobody").status == 404


@pytest.mark.usefixtures("_time_stands_still")
def test_guesses_are_throttled_by_user_and_address(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    for name in ("bob", "carol"):
        add(live, name, SECRET)
    for name in ("bob", "nobody", "alice"):
        found = [logon(live, name, f"guess {number}").status for number in range(throttle.FREE + 1)]
        assert found == [401] * throttle.FREE + [429]
    refused = logon(live, "bob", SECRET)
    assert refused.status == 429 and int(refused.headers["retry-after"]) >= 1, "a throttled password was compared"
    assert live.call("GET", "/conf", token=None, headers=basic("bob", SECRET)).status == 429
    assert logon(live, "alice", PASSWORD).status == 429
    assert logon(live, "carol", SECRET).status == 200 and logon(live, "alice", TOKEN).status == 200


@pytest.mark.usefixtures("_time_stands_still")
def test_parallel_guesses_are_throttled_together(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda number: logon(live, "alice", f"guess {number}").status, range(24)))
    assert set(found) == {401, 429} and found.count(401) <= throttle.FREE + 1


@pytest.mark.usefixtures("_time_stands_still")
def test_a_client_that_logged_on_from_an_address_is_not_locked_out_there_by_others(start: Callable[..., Live]) -> None:
    """One client sends the password with every call, and others guess from the same address."""
    live = start(embedded=False)
    add(live, "bob", SECRET)
    client = basic("bob", SECRET)
    assert live.call("GET", "/conf", token=None, headers=client).status == 200
    assert {logon(live, "bob", f"guess {number}").status for number in range(3 * throttle.FREE)} == {401}
    assert live.call("GET", "/conf", token=None, headers=client).status == 200


@pytest.mark.usefixtures("_time_stands_still")
def test_guesses_at_a_password_that_was_used_before_are_throttled(start: Callable[..., Live]) -> None:
    """A password that the server has found correct before is no way around the throttle."""
    live = start(embedded=False)
    add(live, "bob", SECRET)
    assert logon(live, "bob", SECRET).status == 200
    found = [logon(live, "bob", f"guess {number}").status for number in range(throttle.FREE_TRUSTED + 1)]
    assert found == [401] * throttle.FREE_TRUSTED + [429]
    assert logon(live, "bob", SECRET).error == (429, "auth.too_many_tries")


@pytest.mark.usefixtures("_time_stands_still")
def test_every_attempt_computes_one_hash(start: Callable[..., Live], monkeypatch: pytest.MonkeyPatch) -> None:
    live = start(embedded=False)
    add(live, "bob", SECRET)
    live.add_user("eve")  # has no password
    verify, seen = PasswordHasher.verify, []
    monkeypatch.setattr(PasswordHasher, "verify",
                        lambda self, kept, given: (seen.append(str(kept)), verify(self, kept, given))[1])
    pairs = [("bob", SECRET), ("bob", SECRET), ("bob", "guess"), ("nobody", "guess"), ("eve", "guess"), ("eve", "none"),
             ("alice", PASSWORD), ("alice", "guess"), ("x" * 5000, "guess"), ("", "")]
    for user, password in pairs:
        seen.clear()
        logon(live, user, password)
        assert len(seen) == 1 and seen[0].startswith("$argon2id$"), (user[:20], password)


def test_an_embedded_server_has_one_user(start: Callable[..., Live]) -> None:
    live = start()
    add(live, "bob", SECRET)
    assert logon(live, "bob", SECRET).status == 401
    assert not opens(live, live.add_user("carol"))


def test_the_user_of_the_server_may_have_a_second_password(start: Callable[..., Live]) -> None:
    live = start(embedded=False)
    add(live, "alice", SECRET, "admin")
    for password in (SECRET, PASSWORD, TOKEN):
        assert logon(live, "alice", password).json()["role"] == "Admin"
    assert live.call("DELETE", "/users/alice").status == 204
    assert logon(live, "alice", SECRET).status == 401 and logon(live, "alice", PASSWORD).status == 200


def test_passwords_and_tokens_are_not_stored_on_disk(team: Live) -> None:
    token = token_of(team, "bob", SECRET)
    stored = team.settings.paths.database.read_bytes()
    assert SECRET.encode() not in stored and token.encode() not in stored and b"$argon2id$" in stored
    assert tokens.digest(token).encode() in stored


def test_passwords_are_hashed_with_argon2id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(password_hash, "_HASHER", PasswordHasher())
    kept = hashed(SECRET)
    assert kept.startswith("$argon2id$v=19$m=65536,t=3,p=4$")
    assert matches(kept, SECRET) and not matches(kept, SECRET + " ")
    for kept in ("no hash", "", None):
        assert not matches(kept, SECRET) and not matches(kept, "the password of nobody")
