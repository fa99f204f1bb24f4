"""Which workers a stage may go to, by what they announce; which addresses are spoken to."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.core.processor import isa_here
from qcompile.errors import ClusterError, EngineUnavailable, InvalidOption, MissingFile
from qcompile.pipeline.cluster.resources import (
    PLENTY,
    Facts,
    check_address,
    isa_announced,
    place,
    read_scheduler,
    resources_here,
    security,
    split_address,
    versions_here,
    why_refused,
)
from qcompile.pipeline.recipe.recipe import Recipe, parse_recipe
from qcompile.pipeline.stages.stage import Made, Stage
from qcompile.version import __version__

RECIPE = b"""
version = 1
name = "tiny"
[model]
source = "net.py:build"
[data]
calibration = "calibration.npz"
[[artifact]]
name = "cpu"
target = "onnxruntime"
precision = "int8"
[[artifact]]
name = "rtx"
target = "tensorrt-rtx"
gpus = ["sm86"]
[[artifact]]
name = "trt"
target = "tensorrt"
[bench]
"""
MODEL = Made(Path("model.onnx"), "sha256:0")


def worker(name: str, *has: str, slots: int = 2, **number: float) -> Facts:
    resources = {"slots": float(slots), **dict.fromkeys(has, PLENTY), **number}
    return Facts(name, f"tcp://{name}:1", resources)


WORKERS = [
    worker("a", "export"),
    worker("b", "onnxruntime", "cpu-avx2", slots=3),
    worker("c", "onnxruntime", "pytorch", "cpu-avx2", "cpu-vnni"),
    worker("d", "onnxruntime", "tensorrt-rtx", "cpu-avx2"),
    worker("e", "onnxruntime", "tensorrt", "cpu-avx2", **{"gpu-sm90": 1.0}),
]


@pytest.fixture
def placed(tmp_path: Path) -> Callable[..., Any]:
    (tmp_path / "net.py").write_text("")
    recipe: Recipe = parse_recipe(RECIPE, tmp_path / "recipe.toml")
    return lambda stage, workers=WORKERS, home=None: place(recipe, stage, workers, home)


@pytest.mark.parametrize(
    ("stage", "names", "resources"),
    [
        (Stage(kind="export"), "a", {"slots": 1, "export": 1}),
        (Stage(kind="simplify"), "bcde", {"slots": 1}),
        (Stage(kind="calibrate"), "bcde", {"slots": 1, "onnxruntime": 1}),
        (Stage(kind="quantize", artifact="cpu"), "bcde", {"slots": 1, "onnxruntime": 1}),
        (Stage(kind="build", artifact="cpu"), "bcde", {"slots": 1, "onnxruntime": 1}),
        (Stage(kind="build", artifact="rtx"), "d", {"slots": 1, "tensorrt-rtx": 1}),
        (Stage(kind="build", artifact="trt"), "e", {"slots": 1, "tensorrt": 1, "gpu-sm90": 1}),
        (Stage(kind="bench", built={"cpu": MODEL}), "c", {"slots": 2}),
        (Stage(kind="bench", built={"trt": MODEL}, machine="sm90"), "e", {"slots": 2, "gpu-sm90": 1}),
    ],
)
def test_a_step_goes_where_its_needs_are_met(
    placed: Callable[..., Any], stage: Stage, names: str, resources: dict[str, float]
) -> None:
    chosen = placed(stage)
    assert chosen == ([f"tcp://{name}:1" for name in names], resources)


def test_what_is_measured_is_built_on_the_processor_that_measures_it(placed: Callable[..., Any]) -> None:
    workers, _ = placed(Stage(kind="build", artifact="cpu"), home=WORKERS[2])
    assert workers == ["tcp://c:1"]


def test_a_measurement_goes_to_one_worker_and_takes_all_its_slots(placed: Callable[..., Any]) -> None:
    alike = [worker(name, "onnxruntime", "pytorch", slots=3) for name in "yx"]
    workers, needs = placed(Stage(kind="bench", built={"cpu": MODEL}), alike)
    assert (workers, needs["slots"]) == (["tcp://x:1"], 3)


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (Stage(kind="build", artifact="trt"), "build-trt: no worker has tensorrt; they announce cpu-avx2"),
        (Stage(kind="export"), "export: no worker has export"),
    ],
)
def test_what_nobody_has_is_named(placed: Callable[..., Any], stage: Stage, words: str) -> None:
    with pytest.raises(EngineUnavailable) as raised:
        placed(stage, [WORKERS[1]])
    assert words in raised.value.message


def test_a_machine_announces_its_engines_versions_and_itself() -> None:
    resources = resources_here()
    assert {"onnxruntime", f"{'qcompile'}=={__version__}"} <= resources.keys()
    assert ("export" in resources) == ({"torch", "onnxscript"} <= versions_here().keys())
    facts = Facts("w", "tcp://w:1", resources)
    assert facts.value("onnxruntime", "==") == versions_here()["onnxruntime"]
    assert len(facts.value("host", "=")) == 16
    assert isa_announced(facts) == isa_here()
    assert why_refused(facts) == ""


@pytest.mark.parametrize("package", ["qcompile", "onnxruntime"])
def test_a_worker_of_another_version_is_refused_and_one_without_the_package_is_not(package: str) -> None:
    facts = Facts("w", "tcp://w:1", {f"{package}==0.0.9": PLENTY})
    required = versions_here()[package]
    assert why_refused(facts) == f"worker w (tcp://w:1) has {package} 0.0.9; {required} is required"
    assert why_refused(Facts("w", "tcp://w:1", {})) == ""


ports = st.integers(0, 65535)
names = st.from_regex(
    r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z]([a-z0-9-]{0,10}[a-z0-9])?){0,2}", fullmatch=True
)
hosts = st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str), names)
protocols = st.sampled_from(["tcp", "tls", "ws", "wss"])


def spelled(protocol: str, host: str, port: int) -> str:
    return f"{protocol}://[{host}]:{port}" if ":" in host else f"{protocol}://{host}:{port}"


@given(protocols, hosts, ports)
def test_an_address_is_read_as_it_is_spelled(protocol: str, host: str, port: int) -> None:
    assert split_address(spelled(protocol, host, port)) == (protocol, host, port)
    if protocol == "tcp":
        assert split_address(spelled(protocol, host, port).removeprefix("tcp://")) == ("tcp", host, port)


@given(st.text(max_size=40))
def test_any_other_text_is_refused_by_name(text: str) -> None:
    try:
        protocol, host, port = split_address(text)
    except InvalidOption as error:
        said = error.message
    else:
        said = "`scheduler`"
        assert protocol in ("tcp", "tls", "ws", "wss", "inproc")
        assert host or protocol == "inproc"
        assert port is None or 0 <= port < 1 << 16
    assert "`scheduler`" in said


@given(st.sampled_from(["tcp", "ws"]), st.ip_addresses(), ports)
def test_without_tls_only_loopback_is_spoken_to(
    protocol: str, host: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int
) -> None:
    address = spelled(protocol, str(host), port)
    mapped = getattr(host, "ipv4_mapped", None) or host
    if mapped in ipaddress.ip_network("127.0.0.0/8" if mapped.version == 4 else "::1/128"):
        check_address(address)
        return
    for said in ([], [str(host)], ["other", str(host)]):
        with pytest.raises(ClusterError, match="another host without TLS"):
            check_address(address, said)
    check_address(address, [str(host), str(host)])
    check_address(spelled("tls", str(host), port))


def test_a_name_is_another_host_but_for_localhost() -> None:
    check_address("tcp://localhost:8786")
    check_address("inproc://10.0.0.1/123/1")
    for host in ("localhost.example.com", "127.0.0.1.example.com", "loopback"):
        with pytest.raises(ClusterError):
            check_address(f"tcp://{host}:8786")


def test_the_second_time_is_asked_for() -> None:
    with pytest.raises(ClusterError) as found:
        check_address("tcp://10.0.0.1:8786", ["10.0.0.1"])
    assert found.value.hint.startswith("give `insecure` 10.0.0.1 once more")


def test_a_scheduler_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.json"
    path.write_text(json.dumps({"type": "Scheduler", "address": "tls://10.0.0.1:8786"}))
    assert read_scheduler(str(path)) == "tls://10.0.0.1:8786"
    assert read_scheduler("tcp://127.0.0.1:1") == "tcp://127.0.0.1:1"
    with pytest.raises(MissingFile):
        read_scheduler(str(tmp_path / "other.json"))
    for content in ("", "[]", '{"address": 5}', '{"other": 1}', "[" * 5000):
        path.write_text(content)
        with pytest.raises(InvalidOption, match="holds no address"):
            read_scheduler(str(path))


def test_a_missing_or_wrong_certificate_is_named(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="the extra cluster is not installed")
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    assert security(None, None, None) is None
    with pytest.raises(InvalidOption, match="`tls_cert` is missing"):
        security(file, None, file)
    with pytest.raises(MissingFile, match="`tls_key`"):
        security(file, file, tmp_path / "key.pem")
    with pytest.raises(InvalidOption, match=r"`tls_ca` .* cannot be used"):
        security(file, file, file)
