"""Extras: what is missing, and packages that were built for other versions."""

from __future__ import annotations

import configparser
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from qcompile.engines.doctor.extras import EXTRAS, clash, extra_states

ROOT = Path(__file__).parents[3]


def packages_of(extra: str, extras: configparser.SectionProxy) -> set[str]:
    found = set()
    for line in extras[extra].split("\n"):
        match = re.match(r"([A-Za-z0-9-]+)(\[(\w+)\])?", line)
        if match and match[1] == "qcompile":
            found |= packages_of(match[3], extras)
        elif match:
            found.add(match[1])
    return found


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_packages_are_those_of_setup_cfg(extra: str) -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert set(EXTRAS[extra]) == packages_of(extra, config["options.extras_require"])


def states(versions: dict[str, str], requirements: dict[str, list[str]]) -> dict[str, tuple[str, str, str]]:
    found = extra_states(lambda name: versions.get(name, ""), lambda name: requirements.get(name, []))
    return {one.extra: (one.state, one.problem or ", ".join(one.missing), one.fix) for one in found}


def test_an_extra_is_installed_incomplete_or_missing() -> None:
    found = states({"jinja2": "3.1.6", "jiwer": "4.0", "openvino": "2026.4", "onnxruntime-gpu": "1.31"}, {})
    assert found["openvino"] == ("installed", "", "")
    assert found["metrics"][0] == "incomplete"
    assert found["report"] == ("installed", "", "")
    assert found["cpu"][::2] == ("incomplete", "pip install 'qcompile[cpu]'")
    assert found["tensorflow"] == ("missing", "tensorflow, tf2onnx", "pip install 'qcompile[tensorflow]'")
    assert "onnxruntime" not in found["cpu"][1]  # another distribution holds the module


def test_a_torchvision_of_another_torch_is_broken() -> None:
    requirements = {"torchvision": ["numpy", "torch==2.12.0", "pillow!=8.3.*,>=5.3", "gdown; extra == 'x'"]}
    versions = {"torchvision": "0.27.0", "torch": "2.13.0+cpu", "pillow": "12.0"}
    state, problem, fix = states(versions, requirements)["models"]
    assert (state, problem) == (
        "broken",
        "torchvision 0.27.0 is built for torch==2.12.0; 2.13.0+cpu is installed",
    )
    assert "torch and torchvision of one build" in fix
    assert states(versions | {"torch": "2.12.0"}, requirements)["models"][0] == "incomplete"


def test_tensorflow_beside_a_newer_numpy_is_sent_to_another_environment() -> None:
    requirements = {"tensorflow-cpu": ["numpy<2.2.0,>=1.26.0", "protobuf!=4.21.0,<6.0.0dev,>=3.20.3"]}
    versions = {"tensorflow-cpu": "2.19.0", "tf2onnx": "1.17", "numpy": "2.4.6"}
    state, problem, fix = states(versions, requirements)["tensorflow"]
    assert (state, problem) == (
        "broken",
        "tensorflow-cpu 2.19.0 is built for numpy<2.2.0,>=1.26.0; 2.4.6 is installed",
    )
    assert "an environment of its own" in fix


def test_what_is_installed_here_by_pip_fits() -> None:
    from importlib.metadata import requires

    def installed(name: str) -> str:
        try:
            return version(name)
        except Exception:
            return ""

    assert clash("transformers", installed, lambda name: requires(name) or []) == ""
