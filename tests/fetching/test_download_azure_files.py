"""Files of a share of Azure Files, from a stand-in for the service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fetching_desk import Count, Desk, content
from share_server import ACCOUNT, KEY, SHARE, Account, serving

from local_backend.data import transfer
from local_backend.data.errors import DataError, DataUnavailable
from local_backend.data.registry import find

pytest.importorskip("azure.storage.fileshare", reason="azure-storage-file-share is not installed (extra azure)")

LARGE = 2**20 + 7


@pytest.fixture
def account() -> Iterator[Account]:
    """A share with files in folders."""
    files = {"set/big": content(LARGE), "set/x/empty": b"", "set/x/ä %2F": b"odd", "other": b"no"}
    with serving(Account(files)) as found:
        yield found


def test_folders_and_files_are_downloaded(account: Account, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SMALLEST", 1 << 19)
    meter = Count()
    found = desk.get("azure-files", account.values, {"share": SHARE, "path": "set"}, meter=meter)
    assert desk.read() == {"big": content(LARGE), "x/empty": b"", "x/ä %2F": b"odd"}
    assert (found.size, meter.bytes) == (LARGE + 3, LARGE + 3)
    desk.get("azure-files", account.values, {"share": SHARE, "paths": "./set//x,other"}, job=2)
    assert desk.read(2) == {"set/x/empty": b"", "set/x/ä %2F": b"odd", "other": b"no"}
    desk.get("azure-files", account.values | {"share": SHARE}, {}, job=3)
    assert len(desk.read(3)) == 4


@pytest.mark.parametrize("credential", [
    {"account_name": ACCOUNT, "account_key": KEY}, {"account_name": ACCOUNT, "sas_token": "sv=2024&sig=x"},
    {"connection_string": f"AccountName={ACCOUNT};AccountKey={KEY};FileEndpoint="},
])
def test_a_connection_is_tested_with_each_credential(account: Account, credential: dict[str, str]) -> None:
    if "connection_string" in credential:
        values = {"connection_string": credential["connection_string"] + account.url}
    else:
        values = credential | {"account_host": account.url}
    for more in ({}, {"share": SHARE}):
        family = find("azure-files").open(values | more, loopback=True)
        family.test()
        family.close()
    with pytest.raises(DataError, match="there is no"):
        find("azure-files").open(values | {"share": "no"}, loopback=True).test()


@pytest.mark.parametrize("values", [{}, {"account_name": ACCOUNT}, {"account_key": KEY},
                                    {"connection_string": "x"}, {"account_name": ACCOUNT, "account_key": "a"}])
def test_incomplete_and_malformed_credentials_are_refused(account: Account, values: dict[str, str]) -> None:
    host = {} if "connection_string" in values else {"account_host": account.url}
    with pytest.raises(DataError, match="Azure Files") as caught:
        find("azure-files").open(values | host).test()
    assert not isinstance(caught.value, DataUnavailable)


def test_a_wrong_location_or_key_is_rejected_with_the_reason(account: Account, desk: Desk) -> None:
    for location in ({"share": SHARE, "path": "no/such"}, {"share": "no-such"}, {"path": "a"}):
        with pytest.raises(DataError) as caught:
            desk.get("azure-files", account.values, location)
        assert not isinstance(caught.value, DataUnavailable), location
    account.files.clear()
    with pytest.raises(DataError, match="there is no file"):
        desk.get("azure-files", account.values, {"share": SHARE})
    with pytest.raises(DataError, match="denies access") as caught:
        find("azure-files").open(account.values | {"account_name": "another"}).test()
    assert not isinstance(caught.value, DataUnavailable)


def test_only_an_answer_that_may_change_is_retried(account: Account) -> None:
    account.status = 403
    with pytest.raises(DataError, match="denies access") as caught:
        find("azure-files").open(account.values).test()
    assert not isinstance(caught.value, DataUnavailable)
    account.status = 400
    with pytest.raises(DataUnavailable):
        find("azure-files").open(account.values).test()


def test_a_file_that_changes_before_it_is_read_is_fetched_again(
    account: Account, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_PAUSE_S", 0.001)

    def change(path: str) -> None:
        account.files[path] = b"new"

    account.reading = change
    desk.get("azure-files", account.values, {"share": SHARE, "path": "other"})
    assert desk.read() == {"other": b"new"}


def test_files_of_a_share_cannot_be_streamed() -> None:
    with pytest.raises(DataError, match="download"):
        find("azure-files").open({}).storage()
