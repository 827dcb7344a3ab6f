"""A fake of the NVIDIA bindings that reads its GPUs from the JSON file in FAKE_NVML.

Tests put this folder first on the module path. The format of the file:

    [{"uuid": "GPU-a", "used": 0.1, "lost": false, "ecc": 0, "rows": [0, 0, 0, 0], "xid": null,
      "mig": [{"uuid": "MIG-b", "name": "NVIDIA H200 MIG 1g.18gb"}]}]
"""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace

_told: set[tuple[str, int]] = set()
NVML_DEVICE_MIG_ENABLE = 1
NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, nvmlEventTypeXidCriticalError = 1, 0, 8


class NVMLError(Exception):
    pass


class NVMLError_Timeout(NVMLError):
    pass


def _devices():
    try:
        with open(os.environ["FAKE_NVML"], encoding="utf-8") as file:
            return json.load(file)
    except (KeyError, OSError):
        raise NVMLError("Driver Not Loaded") from None


def _device(uuid):
    for device in _devices():
        if uuid in (device["uuid"], *(part["uuid"] for part in device.get("mig", ()))):
            if device.get("lost"):
                break
            return device
    raise NVMLError("GPU is lost")


def nvmlInit():
    _devices()


def nvmlShutdown():
    pass


def nvmlDeviceGetCount():
    return len(_devices())


def nvmlDeviceGetHandleByIndex(index):
    return _device(_devices()[index]["uuid"])["uuid"]


def nvmlDeviceGetHandleByUUID(uuid):
    _device(uuid)
    return uuid


def nvmlDeviceGetUUID(handle):
    return handle


def nvmlDeviceGetName(handle):
    return next((part["name"] for part in _device(handle).get("mig", ()) if part["uuid"] == handle), "NVIDIA H200")


def nvmlDeviceGetMigMode(handle):
    if "mig" not in _device(handle):
        raise NVMLError("Not Supported")
    return [NVML_DEVICE_MIG_ENABLE, NVML_DEVICE_MIG_ENABLE]


def nvmlDeviceGetMaxMigDeviceCount(handle):
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(handle, number):
    try:
        return _device(handle)["mig"][number]["uuid"]
    except IndexError:
        raise NVMLError("Not Found") from None


def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle):
    if _device(handle)["uuid"] == handle:
        raise NVMLError("Invalid Argument")
    return _device(handle)["uuid"]


def nvmlDeviceGetMemoryInfo(handle):
    return SimpleNamespace(total=1000, used=int(1000 * _device(handle).get("used", 0)))


def nvmlDeviceGetUtilizationRates(handle):
    return SimpleNamespace(gpu=_device(handle).get("busy", 0), memory=0)


def nvmlDeviceGetTotalEccErrors(handle, kind, counter):
    return _device(handle).get("ecc", 0)


def nvmlDeviceGetRemappedRows(handle):
    return tuple(_device(handle).get("rows", (0, 0, 0, 0)))


def nvmlEventSetCreate():
    return []


def nvmlDeviceRegisterEvents(handle, kinds, events):
    events.append(handle)


def nvmlEventSetWait_v2(events, milliseconds):
    until = time.monotonic() + milliseconds / 1000
    while time.monotonic() < until:
        for handle in events:
            if (xid := _device(handle).get("xid")) is not None and (handle, xid) not in _told:
                _told.add((handle, xid))
                return SimpleNamespace(device=handle, eventData=xid)
        time.sleep(0.01)
    raise NVMLError_Timeout("Timeout")
