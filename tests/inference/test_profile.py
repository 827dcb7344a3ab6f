"""Rules of profiles, and the values that the server takes from them."""

from __future__ import annotations

from typing import Any

import pytest

from local_backend.errors import Invalid
from local_backend.inference.control import RequestLimits
from local_backend.inference.profile import (
    ModelProfile,
    changed_profile,
    default_profile,
    fixed_changes,
    to_profile,
)

BEFORE = default_profile(1660119466.0)


def changed(**sections: Any) -> ModelProfile:
    return to_profile(changed_profile(BEFORE, sections, 1660119467.0))


def test_a_new_profile_has_the_recorded_values() -> None:
    assert BEFORE["create_time"] == "Wed Aug 10 08:17:46 2022 GMT"
    assert (BEFORE["schema_version"], BEFORE["type"], BEFORE["replica"]) == ("1.2", "inference", 1)
    assert BEFORE["policy"]["name"] == "capacity"
    found = to_profile(BEFORE)
    assert found == ModelProfile(resource_plan="/local/inference", environment={"DLIM_MK_LOG_LEVEL": "INFO"})
    assert found.limits == RequestLimits(execution_timeout=60.0)


def test_a_change_keeps_what_it_leaves_out() -> None:
    after = changed_profile(BEFORE, {"policy": {"kernel_max": 4}}, 1660119467.0)
    assert after["policy"] == BEFORE["policy"] | {"kernel_max": 4}
    assert after["last_update_time"] == "Wed Aug 10 08:17:47 2022 GMT"
    assert after["create_time"] == BEFORE["create_time"]
    assert BEFORE["policy"]["kernel_max"] == 100


def test_values_become_limits() -> None:
    found = changed(
        policy={"kernel_min": 0, "kernel_max": -1, "task_execution_timeout": -1, "task_batch_size": 8,
                "max_batch_delay_ms": 5, "queue_size": 20, "retry": False, "token_rate": 2.5},
        kernel={"gpu": "shared", "envs": [{"name": "A", "value": 1}]},
        resource_allocation={"kernel": {"resource_plan": "team/serving", "resources": "mem=100,mem_limit=200",
                                        "accelerator_resources": "ngpus=0.25", "gpu_pack_id": "edi-m"}})
    assert (found.kernel_min, found.kernel_max, found.gpu, found.kernel_share) == (0, None, "shared", 0.25)
    assert (found.resource_plan, found.memory, found.pack) == ("/team/serving", 200 << 20, "edi-m")
    assert found.environment == {"A": "1"}
    assert found.limits == RequestLimits(batch_size=8, batch_delay=0.005, execution_timeout=None, queue_size=20,
                                         token_rate=2.5, retry=False)


@pytest.mark.parametrize("gpu", ["no", "exclusive"])
def test_kernels_that_share_no_gpu_are_in_no_pack(gpu: str) -> None:
    found = changed(kernel={"gpu": gpu}, policy={"kernel_min": 3},
                    resource_allocation={"kernel": {"gpu_pack_id": "edi-m"}})
    assert (found.pack, found.kernel_share) == ("", 1.0)


def test_a_stored_profile_that_wants_more_than_the_gpu_of_its_pack_gets_what_fits() -> None:
    stored = changed_profile(default_profile(0.0), {
        "policy": {"kernel_min": 3}, "kernel": {"gpu": "shared"},
        "resource_allocation": {"kernel": {"accelerator_resources": "ngpus=0.25,ngpus_limit=0.5"}}}, 1.0)
    allocation = stored["resource_allocation"]["kernel"]
    allocation |= {"accelerator_resources": "ngpus=0.5", "gpu_pack_id": "p"}
    assert to_profile(stored).kernel_min == 2


def test_the_product_s_own_misspelling_is_read() -> None:
    assert changed(policy={"schedule_intervel": 7}).schedule_interval == 7.0


def test_numbers_and_truth_values_may_be_texts_and_are_answered_as_what_they_are() -> None:
    given = {"policy": {"kernel_max": "3", "schedule_interval": "0.5", "retry": "FALSE"}, "kernel": {"umask": "027"}}
    found = changed_profile(default_profile(0.0), given, 1.0)
    policy = found["policy"]
    assert [policy[key] for key in ("kernel_max", "schedule_interval", "retry")] == [3, 0.5, False]
    assert (found["kernel"]["umask"], found["kernel"]["envs"]) == ("027", default_profile(0.0)["kernel"]["envs"])


@pytest.mark.parametrize(("sections", "words"), [
    ({"policy": {"kernel_min": -1}}, ("policy: kernel_min", "-1", "0 to")),
    ({"policy": {"kernel_max": 0}}, ("policy: kernel_max", "0", "-1 (no limit)")),
    ({"policy": {"kernel_min": 5, "kernel_max": 4}}, ("kernel_max", "4", "kernel_min (5)")),
    ({"policy": {"schedule_interval": 0}}, ("schedule_interval", "0", "above 0")),
    ({"policy": {"task_execution_timeout": 0}}, ("task_execution_timeout", "0", "-1 (no limit)")),
    ({"policy": {"task_batch_size": "many"}}, ("task_batch_size", "'many'", "number")),
    ({"policy": {"kernel_mim": 1}}, ("kernel_mim", "kernel_min")),
    ({"policy": {"name": "fastest"}}, ("name", "'fastest'", "capacity")),
    ({"policy": 3}, ("policy", "3", "object")),
    ({"policy": {"retry": "perhaps"}}, ("retry", "'perhaps'", "true or false")),
    ({"kernel": {"gpu": "all"}}, ("kernel: gpu", "'all'", "no or shared or exclusive")),
    ({"kernel": {"envs": [{"name": "A B", "value": ""}]}}, ("envs", "A B")),
    ({"replica": 0}, ("replica", "0", "from 1")),
    ({"type": "training"}, ("type", "read-only", "'inference'")),
    ({"resource_allocation": {"service": {"namespace": "x"}}}, ("namespace", "read-only")),
    ({"resource_allocation": {"kernel": {"resources": "mem=much"}}}, ("resources", "'mem=much'", "ncpus")),
    ({"kernel": {"gpu": "shared"}, "resource_allocation": {"kernel": {"accelerator_resources": "ngpus=2"}}},
     ("accelerator_resources", "ngpus=2", "at most 1")),
    ({"policy": {"kernel_min": 3}, "kernel": {"gpu": "shared"},
      "resource_allocation": {"kernel": {"gpu_pack_id": "p"}}},
     ("kernel_min", "at most 2 in the pack p", "0.5")),
])
def test_a_bad_value_is_refused_with_its_key(sections: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(Invalid) as refused:
        changed(**sections)
    assert refused.value.code == "model.profile"
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_values_that_kernels_got_at_their_start_are_fixed() -> None:
    after = changed_profile(BEFORE, {"policy": {"kernel_max": 3}, "kernel": {"gpu": "exclusive"}}, 0.0)
    assert fixed_changes(BEFORE, after) == ["kernel.gpu"]
