"""The slots of a machine."""

from local_backend.scheduler.model import CPU
from local_backend.scheduler.slots import discover, usable_cores, visible


def test_the_number_of_cpu_slots_can_be_set() -> None:
    assert [slot.id for slot in discover(3)] == ["cpu-0", "cpu-1", "cpu-2"]
    assert sum(slot.kind == CPU for slot in discover()) == usable_cores()


def test_only_gpus_visible_to_the_server_are_used() -> None:
    devices = ["GPU-a1", "GPU-a2", "GPU-b"]
    assert visible(devices, None) == devices
    assert visible(devices, "") == []
    assert visible(devices, "2,0") == ["GPU-b", "GPU-a1"]
    assert visible(devices, "GPU-b, GPU-a2") == ["GPU-b", "GPU-a2"]
    assert visible(devices, "0,9,1") == ["GPU-a1"]
    assert visible(devices, "GPU-a") == []
