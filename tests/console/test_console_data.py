"""The pages about data: connections without their secrets, volumes, folders, pictures and tables."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from live_server import TOKEN, Answer, Live, multipart
from page_desk import get, post, words

from local_backend.api.guard import SESSION
from local_backend.console.sessions import csrf_of

DATA = "/console/data"
FILES, PICTURE, PREVIEW = f"{DATA}/files", f"{DATA}/picture", f"{DATA}/preview"
NEW, EDIT = f"{DATA}/connections/new", f"{DATA}/connections/edit"
TEST, REMOVE = f"{DATA}/connections/test", f"{DATA}/connections/remove"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(100)
SECRET = "the-secret-of-this-test"
JSON = {"Content-Type": "application/json"}
S3 = {"kind": "s3", "value.endpoint_url": "https://storage.example", "value.access_key_id": "AK",
      "value.secret_access_key": SECRET}


@pytest.fixture
def lake(team: Live) -> Path:
    """DLI_DATA_FS with a folder, and two volumes: one for all users, one for carol alone."""
    folder = team.settings.data_fs / "digits"
    folder.mkdir(parents=True)
    (folder / "rows.csv").write_text("x,y\n1,a\n2,<b>\n")
    (folder / "notes.txt").write_text("first line\n<script>alert(1)</script>\n")
    (folder / "one.png").write_bytes(PNG)
    (folder / "fake.png").write_bytes(b"<svg onload=alert(1)>")
    (folder / "page.html").write_text("<script>alert(2)</script>")
    (folder / "blob.bin").write_bytes(bytes(10))
    for name in ("open", "closed"):
        (team.settings.paths.volumes / name).mkdir(parents=True)
        (team.settings.paths.volumes / name / f"in_{name}.txt").write_text(name)
    team.settings.paths.volume_users.write_text(json.dumps({"closed": ["carol"]}))
    return folder


def fields_of(live: Live, name: str) -> list[dict[str, object]]:
    [kind] = [one for one in live.call("GET", "/connection-kinds").json() if one["name"] == name]
    return list(kind["fields"])


def test_a_connection_is_added_changed_shared_and_removed(team: Live) -> None:
    names = {str(one["name"]) for one in fields_of(team, "s3")}
    assert {f"value.{name}" for name in names} >= S3.keys() - {"kind"}
    form = get(team, f"{NEW}?kind=s3").text
    assert all(f'name="value.{name}"' in form for name in names)
    assert post(team, NEW, {**S3, "name": "lake", "shared": "bob, carol"}).status == 303
    [shown] = team.call("GET", "/connections").json()
    assert (shown["sharedWith"], shown["secrets"]) == (["bob", "carol"], {"secret_access_key": "sealed"})
    row = team.services.connections.known.all()[0]
    for path in (DATA, f"{EDIT}?name={row.id}", f"{NEW}?kind=s3"):
        assert SECRET not in get(team, path).text
    # Only the sharing changes, so the secret stays.
    kept = {**{key: value for key, value in S3.items() if key != "value.secret_access_key"}, "id": row.id}
    assert post(team, EDIT, {**kept, "everybody": "all"}).status == 303
    opened = team.services.connections.known
    assert opened.opened(opened.all()[0]).values["secret_access_key"] == SECRET and opened.all()[0].shared_with is True
    # Another address needs the secret again: else a changed connection would send it there.
    other = {**kept, "value.endpoint_url": "https://elsewhere.example"}
    refused = post(team, EDIT, other)
    assert refused.status == 400 and "enter the secrets again: secret_access_key" in words(refused)
    assert post(team, EDIT, {**other, "value.secret_access_key": "another"}).status == 303
    assert opened.opened(opened.all()[0]).values["endpoint_url"] == "https://elsewhere.example"
    assert post(team, REMOVE, {"id": row.id}).status == 303
    assert team.call("GET", "/connections").json() == []


def test_other_users_see_shared_connections_and_change_none(team: Live) -> None:
    bob, carol = team.add_user("bob"), team.add_user("carol")
    post(team, NEW, {**S3, "name": "mine"})
    post(team, NEW, {**S3, "name": "ours", "shared": "bob"})
    rows = {row.name: row for row in team.services.connections.known.all()}
    seen = words(get(team, DATA, bob))
    assert "ours" in seen and "mine" not in seen and "carol" not in seen and SECRET not in seen
    assert get(team, f"{EDIT}?name={rows['ours'].id}", bob).status == 403
    assert get(team, f"{EDIT}?name={rows['mine'].id}", bob).status == 404
    assert post(team, EDIT, {**S3, "id": rows["ours"].id}, bob).status == 403
    assert post(team, REMOVE, {"id": rows["ours"].id}, bob).status == 403
    assert post(team, TEST, {"id": rows["mine"].id}, bob).status == 404
    assert "ours" not in words(get(team, DATA, carol))
    path = f"/connections/{rows['ours'].id}"
    body = json.dumps({"values": {}}).encode()
    assert team.call("PUT", path, body, JSON, token=bob).error == (403, "connection.of_another_user")
    for changed in (NEW, EDIT, REMOVE, TEST, PREVIEW):
        assert post(team, changed, csrf="").status == 403


def test_a_wrong_connection_is_refused_without_its_secret(team: Live) -> None:
    answer = post(team, NEW, {**S3, "name": "<b>", "value.endpoint_url": "gopher://x"})
    assert answer.status == 400 and SECRET not in answer.text and "<b>" not in answer.text
    assert post(team, NEW, {"name": "x", "kind": "none"}).status == 400


def test_a_connection_is_tested(team: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    post(team, NEW, {**S3, "name": "lake"})
    row = team.services.connections.known.all()[0]
    monkeypatch.setattr("local_backend.services.connections.tested", lambda *_: "no <such> host")
    refused = post(team, TEST, {"id": row.id})
    assert "no <such> host" in words(refused) and "<such>" not in refused.text
    monkeypatch.setattr("local_backend.services.connections.tested", lambda *_: None)
    assert "The connection works." in words(post(team, TEST, {"id": row.id}))


def test_folders_are_browsed(team: Live, lake: Path) -> None:
    bob = team.add_user("bob")
    assert "digits/" in words(get(team, FILES, bob))
    shown = get(team, f"{FILES}?path=digits", bob)
    assert "rows.csv" in words(shown) and f'src="{PICTURE}?volume=&amp;path=digits%2Fone.png"' in shown.text
    told = team.call("GET", "/data/files?path=digits", token=bob).json()
    assert [one["name"] for one in told["entries"]] == [
        "blob.bin", "fake.png", "notes.txt", "one.png", "page.html", "rows.csv",
    ]
    assert team.call("GET", "/data/file?path=digits/rows.csv", token=bob).body == (lake / "rows.csv").read_bytes()


def test_volumes_are_for_their_users(team: Live, lake: Path) -> None:
    bob, carol = team.add_user("bob"), team.add_user("carol")
    assert "closed" not in words(get(team, DATA, bob)) and "closed" in words(get(team, DATA, carol))
    assert [one["name"] for one in team.call("GET", "/volumes", token=bob).json()] == ["open"]
    assert "in_open.txt" in words(get(team, f"{FILES}?volume=open", bob))
    assert "in_closed.txt" in words(get(team, f"{FILES}?volume=closed", carol))
    (lake / "way").symlink_to(team.settings.paths.volumes / "closed")
    for query in ("volume=closed", "volume=closed&path=in_closed.txt", "volume=none", "path=digits/way"):
        assert get(team, f"{FILES}?{query}", bob).status == 404
    assert "way" not in words(get(team, f"{FILES}?path=digits", bob))
    assert get(team, f"{PICTURE}?volume=closed&path=in_closed.txt", bob).status == 404


@pytest.mark.parametrize("path", ["../results", "digits/../..", "/etc", "/etc/passwd", "digits/out", "no", "x\ny"])
def test_no_path_leads_out_of_the_data(team: Live, lake: Path, path: str) -> None:
    bob = team.add_user("bob")
    (lake / "out").symlink_to("/etc")
    for page in (FILES, PICTURE):
        answer = get(team, f"{page}?path={path.replace(chr(10), '%0A')}", bob)
        assert answer.status in (400, 404) and "root:" not in answer.text
    assert get(team, f"{FILES}?volume=../home&path=", bob).status == 404


def test_areas_of_other_users_are_not_shown(team: Live, lake: Path) -> None:
    bob = team.add_user("bob")
    for name in ("bob", "carol"):
        (team.settings.data_fs / "users" / name).mkdir(parents=True, mode=0o700)
    os.chmod(team.settings.data_fs / "users", 0o700)
    shown = words(get(team, f"{FILES}?path=users", bob))
    assert "bob/" in shown and "carol" not in shown


def test_pictures_have_a_safe_type(team: Live, lake: Path) -> None:
    answer = get(team, f"{PICTURE}?path=digits/one.png")
    assert (answer.status, answer.body) == (200, PNG)
    assert answer.headers["content-type"] == "image/png" and answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    for name in ("fake.png", "page.html", "notes.txt"):
        assert get(team, f"{PICTURE}?path=digits/{name}").status == 400
    assert "<img" in get(team, f"{FILES}?path=digits/one.png").text


def test_texts_are_shown_escaped(team: Live, lake: Path) -> None:
    for name, said in (("notes.txt", "alert(1)"), ("page.html", "alert(2)")):
        answer = get(team, f"{FILES}?path=digits/{name}")
        assert said in words(answer) and f"<script>{said}" not in answer.text
    assert "no preview" in words(get(team, f"{FILES}?path=digits/blob.bin"))


def test_the_first_rows_of_a_table_are_shown(team: Live, lake: Path) -> None:
    page = get(team, f"{FILES}?path=digits/rows.csv").text
    assert f'hx-get="{PREVIEW}?volume=&amp;path=digits%2Frows.csv"' in page
    part = get(team, f"{PREVIEW}?path=digits/rows.csv", part=True)
    assert part.status == 200 and "2 <b>" in words(part) and "<b>" not in part.text and TOKEN not in part.text


def upload(
    live: Live, files: dict[str, bytes], token: str = TOKEN, csrf: str | None = None, **fields: str
) -> Answer:
    """Send the form that uploads files, as upload.js does."""
    parts = [(name, None, value.encode()) for name, value in fields.items()]
    body, kind = multipart([*parts, *(("file", name, content) for name, content in files.items()), ("file", "", b"")])
    return live.call("POST", f"{DATA}/upload", body, {
        "Cookie": f"{SESSION}={token}", "Content-Type": kind, "HX-Request": "true",
        "X-CSRF-Token": csrf_of(token) if csrf is None else csrf}, token=None, base="")


def test_a_user_uploads_into_the_own_folder_and_into_volumes(team: Live, lake: Path) -> None:
    bob = team.add_user("bob")
    page = get(team, DATA, bob)
    assert f'href="{FILES}?path=users/bob#upload"' in page.text and "Your folder" in words(page)
    empty = get(team, f"{FILES}?path=users/bob", bob)
    assert empty.status == 200 and "The folder is empty" in words(empty) and "data-upload" in empty.text
    for folder in ("", "?path=digits"):
        shared = get(team, f"{FILES}{folder}", bob)
        assert "data-upload" not in shared.text and f'href="{FILES}?volume=&amp;path=users%2Fbob#upload"' in shared.text
    stored = upload(team, {"images/1.txt": b"1", "images/in/2.txt": b"2"}, bob, path="users/bob", folder="set")
    assert (stored.status, stored.headers["hx-redirect"]) == (204, f"{FILES}?volume=&path=users%2Fbob%2Fset&stored=2")
    assert "images/" in words(get(team, stored.headers["hx-redirect"], bob))
    again = upload(team, {"images/1.txt": b"3"}, bob, path="users/bob/set")
    assert again.error == (409, "data.exists") and "<" not in again.text
    assert upload(team, {"images/1.txt": b"3"}, bob, path="users/bob/set", replace="1").status == 204
    assert (team.settings.data_fs / "users/bob/set/images/1.txt").read_bytes() == b"3"
    assert "data-upload" in get(team, f"{FILES}?volume=open", bob).text
    assert upload(team, {"v.txt": b"v"}, bob, volume="open").status == 204
    assert "v.txt" in words(get(team, f"{FILES}?volume=open", bob))
    assert upload(team, {"v.txt": b"v"}, bob, volume="closed").error == (404, "data.not_found")
    assert upload(team, {}, bob).error == (400, "data.no_files")


@pytest.mark.parametrize("csrf", ["", "x"])
def test_an_upload_needs_the_token_of_the_session(live: Live, csrf: str) -> None:
    assert upload(live, {"a": b"1"}, csrf=csrf).error == (403, "console.csrf")
    assert not list(live.settings.data_fs.iterdir()) and live.nothing_left()


def test_a_user_of_an_embedded_server_uploads_anywhere_in_the_data_folder(live: Live) -> None:
    assert "Your folder" not in words(get(live, DATA))
    assert "data-upload" in get(live, FILES).text
    assert upload(live, {"a.txt": b"1"}, path="new").headers["hx-redirect"] == f"{FILES}?volume=&path=new&stored=1"
    assert "data-upload" in get(live, f"{FILES}?path=new").text


def test_the_page_after_an_upload_says_how_many_files_were_stored(live: Live) -> None:
    sent = upload(live, {"set/a.txt": b"1", "set/b.txt": b"2"})
    assert "Uploaded: 2 files" in words(get(live, sent.headers["hx-redirect"]))
    assert "Uploaded" not in words(get(live, FILES))
    assert get(live, f"{FILES}?stored=many").error == (400, "query.number")
