"""The secrets in a command line that client and server mask wherever they show a submission."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlicmd.contract.argv import join_args, split_args
from dlicmd.contract.secret import (
    MASK,
    looks_secret,
    masked_arguments,
    masked_place,
    masked_text,
    masked_words,
    secret_names,
    without_secrets,
)


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
    ("https://h/blob?sv=1&sig=abc%3D&se=2", f"https://h/blob?sv=1&sig={MASK}&se=2"),
    ("host=h,db_pw=x,user=u", f"host=h,db_pw={MASK},user=u"),
    ("https://h/x?path=a&compat=b", "https://h/x?path=a&compat=b"),
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
    "GITHUB_PAT", "PAT", "azure_devops_pat", "PAT2", "AZURE_STORAGE_CONNECTION_STRING", "connectionString", "CONN_STR",
    "SQLCONNSTR_DB", "BLOB_SAS", "SAS_URL", "SLACK_WEBHOOK", "webhookUrl", "SESSION", "PHPSESSIONID", "DB_PW", "PW",
    "ADMIN_PW_2", "LOGIN_OTP", "BLOB_SIG",
])
def test_variables_with_secret_names_are_masked(name: str) -> None:
    assert masked_words(["--msd-env", f"{name}=hush"]) == ["--msd-env", f"{name}={MASK}"]


@given(st.sampled_from(["PAT", "SAS", "PW", "OTP", "SIG"]), st.from_regex(r"\A(?:[A-Za-z0-9]*[_.])?\Z"),
       st.from_regex(r"\A(?:[_.0-9][A-Za-z0-9]*)?\Z"), st.booleans())
def test_a_short_word_between_separators_is_secret(word: str, before: str, after: str, small: bool) -> None:
    name = before + (word.lower() if small else word) + after
    assert masked_words(["--msd-env", f"{name}=hush"]) == ["--msd-env", f"{name}={MASK}"]
    assert looks_secret(name) and re.search(secret_names(), name), "the JSON schema and the mask must agree"


@given(st.from_regex(r"\A[A-Za-z_]{1,20}\Z"))
def test_the_mask_and_the_json_schema_agree(name: str) -> None:
    assert looks_secret(name) == (re.search(secret_names(), name) is not None)


def test_a_connection_string_under_another_name_is_masked() -> None:
    shown = masked_words(["--msd-env", "STORAGE=DefaultEndpointsProtocol=https;AccountName=a;AccountKey=hush=="])
    assert shown == ["--msd-env", f"STORAGE=DefaultEndpointsProtocol=https;AccountName=a;AccountKey={MASK}"]


@pytest.mark.parametrize("words", [["--github-pat", "hush"], ["--sas=hush"], ["--db_pw", "hush"],
                                   ["--webhook", "hush"]])
def test_options_of_a_program_with_secret_names_are_masked(words: list[str]) -> None:
    assert "hush" not in " ".join(masked_arguments(words)) and MASK in " ".join(masked_arguments(words))


@pytest.mark.parametrize("pair", [
    "AUTHOR=Ann", "AUTHORS=Ann", "EPOCHS=3", "URL=https://h/x?run=1", "A", "A=", "PATH=/bin", "PYTHONPATH=/a;/b",
    "PATIENCE=3", "COMPAT=1", "SASKIA=x", "SIGMA=0.1", "DESIGN=x", "PWM=1", "SPAT=1", "CONNECTIONS=4",
])
def test_other_variables_are_shown(pair: str) -> None:
    assert masked_words(["--msd-env", pair]) == ["--msd-env", pair]


def test_a_password_in_the_address_of_a_variable_is_masked() -> None:
    given = ["--msd-env", "DATABASE_URL=postgres://u:pw1@h/d?sslkey=s"]
    assert masked_words(given) == ["--msd-env", f"DATABASE_URL=postgres://u:{MASK}@h/d?sslkey={MASK}"]
    assert "pw1" not in masked_text(join_args(given), given)


def test_a_log_shows_an_address_without_user_and_query() -> None:
    assert without_secrets("https://u:p@h:8443/in?token=x#y") == "https://h:8443/in"
