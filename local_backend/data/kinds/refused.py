"""Kinds that users know from other products. Their data reaches this backend in another way."""

from __future__ import annotations

from local_backend.data.errors import DataError
from local_backend.data.kind import Family, Kind


class RefusedFamily(Family):
    """The family of refused kinds. It never contacts a server."""

    def test(self) -> None:
        raise DataError(f"this backend cannot read {self.kind.title}")


class RefusedKind(Kind):
    """A kind that is always refused. Its option `instead` says what to do."""

    def require(self) -> None:
        raise DataError(f"this backend cannot read {self.title}: {self.options['instead']}")


COGNOS_ANALYTICS = RefusedKind(
    "cognos-analytics", "Cognos Analytics", RefusedFamily, aliases=("cognos", "ibm-cognos-analytics"),
    options={"instead": "it returns reports, not rows; read the database of its data module, or save the report as a "
                        "file and read the file"},
)
DATA_ENGINE = RefusedKind(
    "data-engine", "Cloud Data Engine", RefusedFamily, aliases=("sql-query", "ibm-cloud-data-engine", "dataengine"),
    options={"instead": "it stores its results in Cloud Object Storage; read them there with a connection of type s3"},
)
