"""What a worker says of its machine, and when it is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version

import msgspec
import pytest

from qcompile.cluster.facts import (
    MUST_MATCH,
    PLENTY,
    Found,
    facts_here,
    host_id,
    isa_announced,
    versions_here,
    why_refused,
)
from qcompile.cluster.messages import Facts
from qcompile.processor import isa_here
from qcompile.version import __version__

SMALL = Found({"onnxruntime": "", "openvino": "", "tensorrt": "no GPU", "pytorch": ""})


def here(found: Found = SMALL, **options: object) -> Facts:
    return facts_here(found, name="w", address="tcp://127.0.0.1:1", **options)  # type: ignore[arg-type]


def test_versions_are_those_of_the_installed_packages() -> None:
    versions = versions_here()
    assert versions["qcompile"] == __version__
    assert versions["onnxruntime"] == version("onnxruntime")
    assert versions["python"] == sys.version.split()[0]
    assert not [name for name, text in versions.items() if not text]


def test_versions_load_nothing_heavy() -> None:
    code = (
        "import sys; from qcompile.cluster.facts import versions_here; versions_here(); "
        "print(sorted({'torch', 'onnx', 'onnxruntime', 'distributed'} & set(sys.modules)))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert said.stdout.strip() == "[]", said.stderr


def test_an_engine_is_announced_where_it_works_and_the_reason_is_told_where_it_does_not() -> None:
    facts = here(slots=2, memory_bytes=1000)
    assert facts.resources["onnxruntime"] == PLENTY
    assert "tensorrt" not in facts.resources
    assert facts.why_not == {"tensorrt": "no GPU"}
    assert facts.resources["slots"] == 2
    assert facts.resources["memory"] == 1000


def test_a_major_version_of_tensorrt_is_a_resource(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qcompile.cluster.facts.versions_here", lambda: {"tensorrt": "10.16.1.11"})
    resources = here(Found({"tensorrt": "", "tensorrt-rtx": ""})).resources
    assert {"tensorrt", "tensorrt-10", "tensorrt-rtx"} <= set(resources)


def test_gpus_of_a_kind_are_counted() -> None:
    gpus = tuple({"index": index, "name": "GPU", "capability": kind} for index, kind in enumerate(
        ["sm90", "sm86", "sm90"]
    ))  # fmt: skip
    facts = here(Found({}, gpus))
    assert (facts.resources["gpu-sm90"], facts.resources["gpu-sm86"]) == (2, 1)


def test_instruction_sets_are_announced(on_processor: Callable[..., None]) -> None:
    on_processor("avx512_vnni", "amx_int8")
    assert {"cpu-vnni", "cpu-amx", "cpu-avx512"} <= set(here().resources)
    assert "cpu-bf16" not in here().resources
    on_processor("avx512_bf16")
    assert "cpu-bf16" in here().resources
    assert "cpu-vnni" not in here().resources


def test_what_the_user_announces_counts() -> None:
    assert here(extra={"rack-7": 1.0, "slots": 3.0}).resources | {"memory": 0} == {
        **here().resources, "rack-7": 1.0, "slots": 3.0, "memory": 0,
    }  # fmt: skip


def test_facts_pass_as_json() -> None:
    facts = here(Found({"onnxruntime": ""}, ({"index": 0, "name": "G", "capability": "sm90"},)))
    assert msgspec.json.decode(msgspec.json.encode(facts), type=Facts) == facts


def test_the_host_is_the_same_for_another_process() -> None:
    code = "from qcompile.cluster.facts import host_id; print(host_id())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert said.stdout.strip() == host_id()
    assert len(host_id()) == 16


@pytest.mark.parametrize("name", ["qcompile", "onnxruntime"])
def test_another_version_is_refused_with_both(name: str) -> None:
    facts = here()
    versions = {**facts.versions, name: "0.0.7"}
    reason = why_refused(facts, versions)
    assert reason == f"worker w (tcp://127.0.0.1:1) has {name} {facts.versions[name]}; 0.0.7 is required"


def test_a_package_that_only_one_has_is_no_reason() -> None:
    facts = here()
    assert why_refused(facts, facts.versions) == ""
    assert why_refused(facts, {**facts.versions, "python": "2.7", "timm": "0"}) == ""
    without = {name: text for name, text in facts.versions.items() if name not in MUST_MATCH}
    assert why_refused(msgspec.structs.replace(facts, versions=without), facts.versions) == ""
    assert why_refused(facts, {}) == ""


@pytest.mark.parametrize(
    ("features", "isa"),
    [((), "avx2"), (("avx512_vnni",), "avx512-vnni"), (("avx512_vnni", "amx_int8"), "amx")],
)
def test_the_instruction_set_of_a_worker_is_what_it_announces(
    features: tuple[str, ...], isa: str, on_processor: Callable[..., None]
) -> None:
    on_processor(*features)
    assert isa_announced(here()) == isa == isa_here()


@pytest.mark.parametrize(
    ("announced", "isa"),
    [
        (["cpu-avx2", "cpu-vnni"], "avx-vnni"),
        (["cpu-dotprod"], "neon-dotprod"),
        (["cpu-dotprod", "cpu-i8mm"], "i8mm"),
        ([], None),
    ],
)
def test_the_instruction_set_of_other_workers(announced: list[str], isa: str | None) -> None:
    facts = Facts("w", "tcp://127.0.0.1:1", "host", {}, dict.fromkeys(announced, 1000.0), 1, 1)
    assert isa_announced(facts) == isa
