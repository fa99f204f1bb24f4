"""The packages of extras by metadata on `sys.path`, and the commands that install what is missing."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import qcompile
from qcompile.core import installation
from qcompile.core.installation import extras, install_hint, unmet
from qcompile.engines.doctor import Problem, extra_states, find_problems

METADATA = """\
Provides-Extra: torch
Provides-Extra: models
Provides-Extra: triton
Requires-Dist: click>=8.2
Requires-Dist: tomli>=2; python_version < "3.11"
Requires-Dist: torch>=2.6; extra == "torch"
Requires-Dist: qcompile-onnx[torch]; extra == "models"
Requires-Dist: timm>=1; extra == "models"
Requires-Dist: absent>=1; python_version < "3" and extra == "models"
Requires-Dist: tritonclient[grpc]>=2.41; extra == "triton"
"""
_INSTALLED = distribution("qcompile-onnx")
OURS = "".join(
    f"{line}\n"
    for line in (_INSTALLED.read_text("METADATA") or _INSTALLED.read_text("PKG-INFO") or "").splitlines()
    if line.startswith(("Provides-Extra:", "Requires-Dist:"))
)
"""What this distribution declares."""
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Write metadata as an installer leaves it, into a folder that is the only one on `sys.path`."""
    installation._all_extras.cache_clear()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def write(name: str, version: str = "1.0", more: str = "", **files: str) -> Path:
        folder = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}")
        for file, text in files.items():
            (folder / file.replace("__", ".")).write_text(text)
        for line in files.get("RECORD", "").splitlines():  # newer readers of metadata look for the files
            path = tmp_path / line.partition(",")[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        importlib.invalidate_caches()  # of folders, by times that two writes may share
        return folder

    yield write
    installation._all_extras.cache_clear()


def test_the_packages_are_read_from_the_metadata(install: Install) -> None:
    install("qcompile-onnx", "0.3.0", METADATA)
    assert extras() == {
        "torch": (Requirement("torch>=2.6"),),
        "models": (Requirement("torch>=2.6"), Requirement("timm>=1")),
        "triton": (Requirement("tritonclient[grpc]>=2.41"),),
    }


def test_the_command_names_what_is_missing_or_too_old_and_nothing_else(install: Install) -> None:
    install("qcompile-onnx", "0.3.0", METADATA)
    assert install_hint("models") == "pip install 'torch>=2.6' 'timm>=1'"
    torch = install("torch", "2.5.1+cpu")
    assert install_hint("models") == "pip install 'torch>=2.6' 'timm>=1'"
    torch.rename(torch.with_name("torch-2.13.0.dist-info"))
    (torch.with_name("torch-2.13.0.dist-info") / "METADATA").write_text("Name: torch\nVersion: 2.13.0+cpu\n")
    assert install_hint("models") == "pip install 'timm>=1'"
    assert install_hint("triton") == "pip install 'tritonclient[grpc]>=2.41'"


def test_where_nothing_is_missing_pip_is_asked_for_what_the_packages_lack(install: Install) -> None:
    install("qcompile-onnx", "0.3.0", METADATA)
    install("torch", "2.13.0")
    assert unmet("torch") == []
    assert install_hint("torch") == "pip install 'torch>=2.6'"


@pytest.mark.parametrize(
    ("extra", "name", "version", "command"),
    [
        ("cpu", "onnxruntime-gpu", "1.31.0",
         "pip install 'onnxsim>=0.4.36' 'polygraphy>=0.53' 'nvidia-ml-py>=12' 'numba>=0.60'"),
        ("cpu", "onnxruntime-gpu", "1.20.0", "pip install 'onnxruntime-gpu>=1.21' 'onnxsim>=0.4.36' "
         "'polygraphy>=0.53' 'nvidia-ml-py>=12' 'numba>=0.60'"),
        ("tensorrt", "tensorrt", "8.4.0", "pip install 'tensorrt>=10'"),
    ],
)  # fmt: skip
def test_a_distribution_that_owns_the_module_takes_the_place_of_another(
    install: Install, extra: str, name: str, version: str, command: str
) -> None:
    install("qcompile-onnx", "0.3.0", OURS)
    install(name, version)
    assert install_hint(extra) == command


def test_tensorrt_8_serves_for_tensorrt(install: Install) -> None:
    install("qcompile-onnx", "0.3.0", OURS)
    install("tensorrt", "8.6.1")
    install("numpy", "1.26.4")
    assert unmet("tensorrt") == []


def test_doctor_names_a_version_outside_the_range_and_its_command(install: Install) -> None:
    install("qcompile-onnx", "0.3.0", OURS)
    install("openvino", "2023.3.0")
    (state,) = (one for one in extra_states() if one.extra == "openvino")
    assert (state.state, state.missing) == ("broken", ("openvino",))
    assert state.problem == "openvino 2023.3.0 is installed; openvino>=2024.4 is required"
    assert state.fix.startswith("pip install 'openvino>=2024.4'")


def test_an_extra_that_includes_another_has_the_ranges_of_both(install: Install) -> None:
    install("qcompile-onnx", "0.3.0", OURS)
    assert install_hint("qat") == "pip install 'torch>=2.6' 'onnxscript>=0.3,>=0.7' 'torchao>=0.12'"


@pytest.mark.usefixtures("install")
def test_without_metadata_the_extra_is_named() -> None:
    assert install_hint("qat") == "install the packages of the extra 'qat' of qcompile"


def test_without_packaging_the_extra_is_named(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install("qcompile-onnx", "0.3.0", METADATA)
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    assert install_hint("torch") == "install the packages of the extra 'torch' of qcompile"


def test_a_worker_reads_the_metadata_beside_the_package(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("qcompile-onnx", "0.3.0", METADATA)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(installation, "_PACKAGE", tmp_path / "qcompile")
    assert install_hint("torch") == "pip install 'torch>=2.6'"


THEIRS = "qcompile/__init__.py,,\nqcompile-0.1.25.dist-info/METADATA,,\n"
EARLIER = "[console_scripts]\nqcompile = qcompile.cli:main\n"
EDITABLE = "__editable___qcompile_0_3_0_finder.py,,\n"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"RECORD": THEIRS}, "qcompile 0.1.25, another project of the package index"),
        (
            {"RECORD": THEIRS, "entry_points__txt": EARLIER},
            "qcompile 0.1.25, an earlier wheel of qcompile-onnx",
        ),
        ({"RECORD": EDITABLE, "entry_points__txt": EARLIER}, ""),
    ],
)
@pytest.mark.parametrize("editable", [False, True])
def test_doctor_finds_the_other_project_of_the_name(
    install: Install, files: dict[str, str], found: str, editable: bool
) -> None:
    install("qcompile-onnx", "0.3.0", METADATA, RECORD=EDITABLE if editable else "qcompile/__init__.py,,\n")
    install("qcompile", "0.1.25", **files)
    wheel = f"dist/qcompile_onnx-{qcompile.__version__}-py3-none-any.whl"
    again = "" if editable else f" && pip install --force-reinstall --no-deps {wheel}"
    problem = f"{found}, is installed: its files replace or hide those of qcompile-onnx"
    expected = [Problem(problem, f"pip uninstall -y qcompile{again}")] if found else []
    assert find_problems({"qcompile", "qcompile-onnx"}) == expected


def test_doctor_ends_with_1_where_the_other_project_is_installed(install: Install, tmp_path: Path) -> None:
    install("qcompile", "0.1.25", RECORD=THEIRS)
    program = f"import sys; sys.path.append({str(tmp_path)!r}); import qcompile.cli as c; c.main(['doctor'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "qcompile 0.1.25, another project of the package index, is installed" in done.stderr
    assert "fix: pip uninstall -y qcompile" in done.stderr
