"""Kinds that people know from elsewhere, whose data comes another way here."""

from __future__ import annotations

from local_backend.data.errors import DataError
from local_backend.data.kinds.base import Family, Kind


class Refused(Family):
    """No server is ever talked to."""

    def test(self) -> None:
        raise DataError(f"{self.kind.title} is not read by this backend")


class RefusedKind(Kind):
    """Its option `instead` says what to do."""

    def require(self) -> None:
        raise DataError(f"{self.title} is not read by this backend: {self.options['instead']}")


KINDS = (
    RefusedKind("cognos-analytics", "Cognos Analytics", Refused, aliases=("cognos", "ibm-cognos-analytics"), options={
        "instead": "it answers reports, not rows; read the database that its data module stands on, or save the report "
                   "as a file and read that"}),
    RefusedKind("data-engine", "Cloud Data Engine", Refused,
                aliases=("sql-query", "ibm-cloud-data-engine", "dataengine"), options={
        "instead": "it leaves its results in Cloud Object Storage; read them there, with a connection of type s3"}),
)
