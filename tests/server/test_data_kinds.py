"""Names of kinds of connections, as products and their consoles spell them; and refused connection values."""

from __future__ import annotations

import pytest

from local_backend.data import registry
from local_backend.data.errors import DataError
from local_backend.data.kind import Kind

#: The names that the contract lists.
LISTED = {
    "Databases for MySQL": "mysql", "Cloud Object Storage": "cos", "Cloudant": "cloudant",
    "Cloud Data Engine": "data-engine", "Cognos Analytics": "cognos-analytics", "Databases for MongoDB": "mongodb",
    "Db2 for z/OS": "db2zos", "Db2 Warehouse": "db2warehouse", "Netezza Performance Server": "netezza",
    "Amazon RDS for MySQL": "mysql", "RDS for MySQL": "mysql", "RDS for Oracle": "oracle",
    "Amazon RDS for Oracle": "oracle", "S3": "s3", "Amazon S3": "s3", "Apache Cassandra": "cassandra",
    "Cassandra": "cassandra", "Hive": "hive", "Apache Hive": "hive", "Azure File Storage": "azure-files",
    "Azure Data Lake Storage": "azure-data-lake", "SQL Server": "sqlserver", "Microsoft SQL Server": "sqlserver",
    "MongoDB": "mongodb", "MySQL": "mysql", "PostgreSQL": "postgresql", "SingleStoreDB": "singlestore",
    "Snowflake": "snowflake", "Teradata": "teradata", "storage volume": "storage-volume", "NFS": "storage-volume",
}


@pytest.mark.parametrize("name", LISTED)
def test_every_listed_spelling_is_known(name: str) -> None:
    spellings = (name, name.lower(), name.replace(" ", "_").upper(), name.replace(" ", "-"), f" {name} ")
    assert {registry.find(one).name for one in spellings} == {LISTED[name]}


@pytest.mark.parametrize("name", [name for name in LISTED if name.startswith(("Databases", "Cloud", "Db2", "Netezza"))])
def test_the_name_of_the_maker_is_optional(name: str) -> None:
    assert registry.find(f"IBM {name}") is registry.find(name)


def test_each_name_means_one_kind() -> None:
    meant: dict[str, Kind] = {}
    for kind in registry.every().values():
        for name in (kind.name, kind.title, *kind.aliases):
            maker, _, rest = name.lower().replace(" ", "-").partition("-")
            for spelling in (name.lower(), rest if rest and maker in registry._MAKERS else name.lower()):
                assert registry.find(spelling) is meant.setdefault(spelling, kind) is kind


def test_an_unknown_kind_gets_a_suggestion() -> None:
    with pytest.raises(DataError, match="'postgresql'"):
        registry.find("postgresq")
    with pytest.raises(DataError, match="azure-blob, "):
        registry.find("zzzzzzz")


@pytest.mark.parametrize(("kind", "values", "said"), [
    ("http", {"url": "example.com/a"}, "'url'.*http://HOST or https://HOST"),
    ("http", {"url": "ftp://h/a"}, "http://HOST or https://HOST"), ("http", {"url": "https:///a"}, "http://HOST"),
    ("http", {"url": "https://h:x/a"}, "'url'.*host or port"), ("http", {"url": "https://[h/a"}, "host or port"),
    ("cloudant", {"url": "h.example.com", "database": "d"}, "https://HOST or http://HOST"),
    ("gcs", {"endpoint_url": "gs://bucket"}, "https://HOST"),
    ("s3", {"endpoint_url": "s3://bucket"}, "https://HOST"), ("s3", {"endpoint_url": "/h"}, "https://HOST"),
    ("cos", {"endpoint_url": "https://h", "iam_url": "iam.cloud.ibm.com"}, "'iam_url'"),
    ("hdfs", {"url": "hdfs://namenode:8020"}, "http://HOST"),
    *(("sftp", {"host": "h", "username": "u", "port": port}, "'port'.*1 to 65535")
      for port in ("abc", "0", "-1", "99999", "65536", "22.0", "²", " 22", "1" * 5000)),
])
def test_a_connection_with_an_invalid_address_is_refused(kind: str, values: dict[str, str], said: str) -> None:
    with pytest.raises(DataError, match=said):
        registry.find(kind)._complete(values)


PLANTED = "PLANTEDq17"


def hosts() -> list[tuple[str, str]]:
    """Return kind and field name of every field that holds a host or an address."""
    return [(kind.name, item.name) for kind in registry.every().values() for item in kind.fields
            if item.host or item.schemes]


@pytest.mark.parametrize(("kind", "field"), hosts())
@pytest.mark.parametrize("host", [f"u:{PLANTED}@h", f"{PLANTED} h", f"h' or {PLANTED}", f"h,{PLANTED}",
                                  f"host={PLANTED}", f"h?{PLANTED}", f"mongodb://u:{PLANTED}@h/", f"https://u:{PLANTED}/x@h/",
                                  f"h;{PLANTED}", f"-{PLANTED}", f"a..{PLANTED}", f"h\\{PLANTED}", f"h\n{PLANTED}"])
def test_an_invalid_host_is_refused_and_never_shown(kind: str, field: str, host: str) -> None:
    found = registry.find(kind)
    values = {item.name: "x" for item in found.fields if item.required} | {field: host}
    with pytest.raises(DataError) as caught:
        found._complete(values)
    assert f"'{field}'" in str(caught.value) and PLANTED not in str(caught.value)


@pytest.mark.parametrize("host", ["h:5432", "h/x", "h#f", "[::1]", "/var/run,evil", "@abstract", "/a\nb", "x" * 64,
                                  " h", "a." * 130, "\udcff"])
def test_a_host_with_a_port_or_a_path_is_refused(host: str) -> None:
    with pytest.raises(DataError, match="'host'"):
        registry.find("postgresql")._complete({"host": host, "database": "d", "username": "u"})
    with pytest.raises(DataError, match="'host'"):
        registry.find("mysql")._complete({"host": "/var/run/mysqld", "database": "d", "username": "u"})


def test_every_field_named_host_or_url_is_checked() -> None:
    named = {(kind.name, item.name) for kind in registry.every().values() for item in kind.fields
             if {"host", "url"} & {item.name, *item.aliases}}
    assert named <= set(hosts())


@pytest.mark.parametrize(("kind", "values"), [
    ("http", {"url": "https://h:8443/a/b"}), ("s3", {"endpoint_url": "h.example.com:9000"}), ("s3", {}),
    ("cos", {"endpoint_url": "s3.eu-de.cloud-object-storage.appdomain.cloud"}), ("hdfs", {"url": "namenode"}),
    ("hdfs", {"url": "webhdfs://namenode:9870"}), ("sftp", {"host": "h", "username": "u", "port": "65535"}),
    ("cloudant", {"url": "http://h", "database": "d"}),
    *(("sftp", {"host": host, "username": "u"})
      for host in ("हिन्दी.भारत", "h\u0301ost", "db-1.example.com", "db.example.com.", "my_service", "LOCALHOST",
                   "127.0.0.1", "::1", "fe80::1%eth0", "2001:db8::7", "bücher.example", "x" * 63)),
    ("postgresql", {"host": "/var/run/postgresql", "database": "d", "username": "u"}),
    ("snowflake", {"account": "org-acct.eu-west-1", "username": "u", "password": "p", "database": "d"}),
    ("azure-blob", {"account_name": "a", "account_host": "127.0.0.1:10000/a"}),
    ("azure-files", {"account_name": "a", "account_host": "https://a.file.core.windows.net"}),
])
def test_a_connection_with_a_valid_address_is_accepted(kind: str, values: dict[str, str]) -> None:
    assert registry.find(kind)._complete(values) == values


SERVER = {"host": "db.example", "database": "d", "username": "u", "password": "p"}


@pytest.mark.parametrize("kind", ["mysql", "cassandra", "mongodb"])
@pytest.mark.parametrize(("written", "meant"), [("", None), ("true", True), ("True", True), ("FALSE", False)])
def test_the_ssl_field_accepts_every_case(kind: str, written: str, meant: bool | None) -> None:
    family = registry.find(kind).open({**SERVER, "ssl": written}, loopback=True)
    assert family.tls_wish() is meant


@pytest.mark.parametrize("kind", ["mysql", "cassandra", "mongodb"])
def test_an_invalid_ssl_value_does_not_turn_tls_off(kind: str) -> None:
    family = registry.find(kind).open({**SERVER, "ssl": "yes"}, loopback=True)
    with pytest.raises(DataError, match="true or false"):
        family.tls_wish()
