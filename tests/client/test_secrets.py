"""The secrets in a command line that client and server mask wherever they show a submission."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlicmd.contract.argv import join_args, split_args
from dlicmd.contract.secret import MASK, masked_place, masked_text, masked_words, without_secrets


@given(st.lists(st.sampled_from(
    ["--msd-env", "--msd-env=A_KEY=x", "A=1", "my_token=x", "--password", "--password=p", "--cs-url-bearer", "b", "--",
     "--data-source", "--data-source=[]", '[{"connection": {"k": "s"}}]', "--msd-env=A=1", "KEY=",
     "--msd-env=KEY=", "--cs-rmq-meta", "host=h,password=p", "--cs-rmq-meta=amqp://u:p@h"]),
    max_size=6))
def test_a_line_and_its_words_are_masked_alike(words: list[str]) -> None:
    assert split_args(masked_text(join_args(words), words)) == masked_words(words)


@pytest.mark.parametrize(("given", "shown"), [
    ("amqp://u:p@h:5672/v?exchange=x", f"amqp://u:{MASK}@h:5672/v?exchange=x"),
    ("amqps://u:p@ss/w:rd@h/v", f"amqps://u:{MASK}@h/v"),
    ("https://h/in?api_key=abc&x=1", f"https://h/in?api_key={MASK}&x=1"),
    ("url=https://u:p@h/in", f"url=https://u:{MASK}@h/in"),
    ("host=h,user=u,password=a,b,c,routing_key=r", f"host=h,user=u,password={MASK},routing_key=r"),
    ("host=h, Passwd = x y ,user=u", f"host=h, Passwd ={MASK},user=u"),
    ("https://h:8443/in?run=7#top", "https://h:8443/in?run=7#top"),
    ("host=h,exchange=e,routing_key=r", "host=h,exchange=e,routing_key=r"),
])
def test_passwords_in_a_metrics_address_are_masked(given: str, shown: str) -> None:
    assert masked_place(given) == shown


@pytest.mark.parametrize(("given", "shown"), [
    (['[{"type": "fs",  "location": {"paths": "a"}}]'], ['[{"type": "fs",  "location": {"paths": "a"}}]']),
    (['[{"type": "s3", "connection": {"endpoint_url": "https://u:p@h", "secret_access_key": "s", "n": [1]}}]'],
     [f'[{{"type": "s3", "connection": {{"endpoint_url": "https://u:{MASK}@h", "secret_access_key": "{MASK}", '
      f'"n": "{MASK}"}}}}]']),
    (['{"connection": {"name": "warehouse"}}'], ['{"connection": {"name": "warehouse"}}']),
    (['[{"location": {"keyspace": "k", "password": "P"}, "token": "T", "primary_key": true}]'],
     [f'[{{"location": {{"keyspace": "k", "password": "{MASK}"}}, "token": "{MASK}", "primary_key": true}}]']),
    (['[{"location": {"url": "https://u:p@h/x"}}]'], [f'[{{"location": {{"url": "https://u:{MASK}@h/x"}}}}]']),
    (['[{"connection":', '{"password":', '"s"}}]', "--user-cmd", "x"], [MASK, MASK, MASK, "--user-cmd", "x"]),
    (["nonsense"], [MASK]),
])
def test_credentials_in_a_data_source_are_masked(given: list[str], shown: list[str]) -> None:
    assert masked_words(["--data-source", *given]) == ["--data-source", *shown]
    if len(given) == 1:
        assert masked_words([f"--data-source={given[0]}"]) == [f"--data-source={shown[0]}"]
        # A line without its quotes, as the original client sends it, must not show a secret either.
        assert '"s"' not in masked_text(f"--data-source {given[0]}", split_args(f"--data-source {given[0]}"))


@pytest.mark.parametrize("name", [
    "MYSQL_PWD", "PGPASS", "PASS", "AUTH", "Authorization", "PROXY_AUTHORIZATION", "COOKIE", "DB_DSN", "API_KEY",
])
def test_variables_with_secret_names_are_masked(name: str) -> None:
    assert masked_words(["--msd-env", f"{name}=hush"]) == ["--msd-env", f"{name}={MASK}"]


@pytest.mark.parametrize("pair", ["AUTHOR=Ann", "AUTHORS=Ann", "EPOCHS=3", "URL=https://h/x?run=1", "A", "A="])
def test_other_variables_are_shown(pair: str) -> None:
    assert masked_words(["--msd-env", pair]) == ["--msd-env", pair]


def test_a_password_in_the_address_of_a_variable_is_masked() -> None:
    given = ["--msd-env", "DATABASE_URL=postgres://u:pw1@h/d?sslkey=s"]
    assert masked_words(given) == ["--msd-env", f"DATABASE_URL=postgres://u:{MASK}@h/d?sslkey={MASK}"]
    assert "pw1" not in masked_text(join_args(given), given)


def test_a_log_shows_an_address_without_user_and_query() -> None:
    assert without_secrets("https://u:p@h:8443/in?token=x#y") == "https://h:8443/in"
