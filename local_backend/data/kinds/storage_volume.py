"""Storage volumes as connections: clients of other products refer to volumes and NFS servers as connections."""

from __future__ import annotations

from local_backend.data.kind import Field, Kind, Mounted

STORAGE_VOLUME = Kind("storage-volume", "Storage volume", Mounted, fields=(
    Field("volume", "name of the volume; local-backend volume list shows the names", required=True,
          aliases=("volume_name", "volumeName", "pvc")),
    Field("folder", "folder of the volume that paths are relative to", aliases=("root", "path")),
), aliases=("volume", "volumes", "storagevolume", "nfs", "nfs-volume", "network-file-system", "pvc",
            "persistent-volume"), tested="a volume of this machine")
