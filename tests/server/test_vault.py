"""Secrets are encrypted on disk, and errors name the fault of the key."""

from __future__ import annotations

import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from local_backend.vault import Vault, VaultError

SECRET = "sëcret of nobody"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys" / "secrets.key"


def test_a_sealed_secret_can_be_opened_and_is_not_readable(file: Path) -> None:
    sealed = Vault(file).seal_text(SECRET)
    assert Vault(file).open_text(sealed) == SECRET and "cret" not in sealed
    assert Vault(file).seal_text(SECRET) != sealed, "equal secrets have equal ciphertexts"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_parallel_first_seals_use_one_key(file: Path) -> None:
    sealed: list[str] = []
    barrier = threading.Barrier(8)

    def seal() -> None:
        barrier.wait()
        sealed.append(Vault(file).seal_text(SECRET))

    threads = [threading.Thread(target=seal) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {Vault(file).open_text(one) for one in sealed} == {SECRET} and len(sealed) == 8


@pytest.mark.parametrize(("harm", "said"), [
    (lambda file: file.unlink(), "does not exist"),
    (lambda file: (file.unlink(), Vault(file).seal(b"")), "its key is not in"),
    (lambda file: file.write_bytes(b"no key\n"), "contains no valid keys"),
    (lambda file: file.write_bytes(b""), "contains no valid keys"),
    (lambda file: (file.unlink(), file.mkdir()), "cannot read"),
])
def test_an_invalid_key_file_is_named_with_its_fault(file: Path, harm: Callable[[Path], object], said: str) -> None:
    sealed = Vault(file).seal_text(SECRET)
    harm(file)
    with pytest.raises(VaultError, match=said) as caught:
        Vault(file).open_text(sealed)
    assert str(file) in str(caught.value) and SECRET not in str(caught.value)


def test_a_key_file_that_others_can_read_is_refused(file: Path) -> None:
    Vault(file).check()
    Vault(file).seal(b"x")
    Vault(file).check()
    file.chmod(0o640)
    with pytest.raises(VaultError, match="chmod 600"):
        Vault(file).check()


def test_a_renewed_key_opens_old_secrets_until_old_keys_are_forgotten(file: Path) -> None:
    vault = Vault(file)
    old = vault.seal_text(SECRET)
    vault.renew()
    new = vault.seal_text(vault.open_text(old))
    vault.forget_old()
    assert vault.open_text(new) == SECRET
    with pytest.raises(VaultError):
        vault.open_text(old)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_old_keys_are_forgotten_only_if_the_new_key_is_valid(file: Path) -> None:
    vault = Vault(file)
    with pytest.raises(VaultError, match=str(file)):
        vault.forget_old()
    sealed = vault.seal_text(SECRET)
    kept = file.read_bytes()
    file.write_bytes(b"\n" + kept)
    vault.forget_old()
    assert vault.open_text(sealed) == SECRET and file.read_bytes() == kept
    for content in (b"", b"no key\n" + kept):
        file.write_bytes(content)
        with pytest.raises(VaultError, match=str(file)):
            vault.forget_old()
        assert file.read_bytes() == content
    file.unlink()
    file.mkdir()
    with pytest.raises(VaultError, match="cannot read"):
        vault.forget_old()
