"""A command line is read as a shell reads it, and never run."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from qcompile.errors import InvalidOption
from qcompile.pipeline.migrate.command_line import Invocation, read_command


def words(text: str) -> list[str]:
    return list(read_command(text).words)


@pytest.mark.parametrize(
    "text",
    [
        "trtexec --onnx=m.onnx --fp16",
        "  trtexec   --onnx=m.onnx\t--fp16  ",
        "/usr/src/tensorrt/bin/trtexec --onnx=m.onnx --fp16",
        "./trtexec --onnx=m.onnx --fp16",
        "TRTEXEC.EXE --onnx=m.onnx --fp16",
        '"C:\\Program Files\\TensorRT\\bin\\trtexec.exe" --onnx=m.onnx --fp16',
        "$ trtexec --onnx=m.onnx --fp16",
        "!trtexec --onnx=m.onnx --fp16",
        ">>> trtexec --onnx=m.onnx --fp16",
        "PS E:\\work\\models> trtexec --onnx=m.onnx --fp16",
        "(base) user@host:~/models$ trtexec --onnx=m.onnx --fp16",
        "trtexec \\\n  --onnx=m.onnx \\\n  --fp16\n",
        "trtexec \\\r\n  --onnx=m.onnx \\\r\n  --fp16\r\n",
        "trtexec.exe ^\r\n --onnx=m.onnx ^\r\n --fp16",
        "trtexec `\n --onnx=m.onnx `\n --fp16",
        "trtexec --onnx='m.onnx' --fp16",
        'trtexec --onnx="m.onnx" --fp16',
        "#!/bin/bash\nset -e\n# trtexec --old\n\ntrtexec --onnx=m.onnx --fp16\necho done",
        "trtexec --onnx=m.onnx --fp16 > log.txt 2>&1",
        "trtexec --onnx=m.onnx --fp16 2> errors.txt",
        "trtexec --onnx=m.onnx --fp16 2>&1 | tee log.txt",
        "trtexec --onnx=m.onnx --fp16 && echo built || echo failed",
        "trtexec --onnx=m.onnx --fp16 &",
        "mkdir -p out; trtexec --onnx=m.onnx --fp16; ls",
        "sudo trtexec --onnx=m.onnx --fp16",
        "time nice -n 5 trtexec --onnx=m.onnx --fp16",
        "CUDA_VISIBLE_DEVICES=1 trtexec --onnx=m.onnx --fp16",
        "M=m.onnx\ntrtexec --onnx=$M --fp16",
        "export D=m\nM=${D}.onnx trtexec --onnx=${M} --fp16",
        "docker run --rm -it --gpus all nvcr.io/nvidia/tensorrt:23.04-py3 trtexec --onnx=m.onnx --fp16",
        "docker exec trt trtexec --onnx=m.onnx --fp16",
        "docker run --rm nvcr.io/nvidia/tensorrt:23.04-py3 bash -c 'trtexec --onnx=m.onnx --fp16'",
        'docker run -it trt sh -c "cd / && trtexec --onnx=m.onnx --fp16 > log"',
    ],
)
def test_the_same_command_in_many_forms(text: str) -> None:
    assert words(text) == ["--onnx=m.onnx", "--fp16"]


@pytest.mark.parametrize("text", ["polygraphy run m.onnx --trt", "python3 -m polygraphy run m.onnx --trt"])
def test_polygraphy_and_its_module(text: str) -> None:
    call = read_command(text)
    assert (call.tool, list(call.words)) == ("polygraphy", ["run", "m.onnx", "--trt"])


@pytest.mark.parametrize(
    "text",
    [
        "trtexec --onnx=seed\\=0/m.onnx",
        "trtexec --minShapes=\\'input:0\\':1x3",
        "trtexec --minShapes=\"'input:0':1x3\"",
        "trtexec --shapes='a:1x2,b:3' --onnx=\"my model.onnx\"",
        "trtexec --onnx=a\\ b.onnx",
    ],
)
def test_quotes_and_escapes_are_those_of_a_shell(text: str) -> None:
    """`printf` shows what the shell of this machine makes of the words: an independent oracle."""
    told = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {text.partition(' ')[2]}"], capture_output=True, text=True, check=True
    )
    assert words(text) == told.stdout.splitlines()


def test_numbers_in_front_of_a_redirection_are_values() -> None:
    assert words("polygraphy run m.onnx --iterations 2 > log") == ["run", "m.onnx", "--iterations", "2"]


def test_the_folders_of_a_container_are_those_of_this_machine() -> None:
    call = read_command(
        "docker run --rm -v $(pwd)/models:/models:ro --volume=/data:/data "
        "--mount type=bind,source=${PWD},target=/work -w /work -e NVIDIA_TF32_OVERRIDE=0 "
        "nvcr.io/nvidia/tensorrt:23.04-py3 trtexec --onnx=/models/m.onnx"
    )
    assert call.mounts == {"/models": "./models", "/data": "/data", "/work": "."}
    assert (call.folder, call.variables) == ("/work", {"NVIDIA_TF32_OVERRIDE": "0"})
    assert call.wrapper.startswith("docker run --rm")


def test_the_folders_of_a_container_are_known_to_the_shell_in_it() -> None:
    call = read_command("docker run -v $PWD:/w -w /w trt bash -c 'cd /w/sub; trtexec --onnx=m.onnx'")
    assert (call.mounts, call.folder) == ({"/w": "."}, "/w/sub")
    assert call.wrapper == "docker run -v .:/w -w /w trt bash -c"


def test_a_folder_that_was_changed_into_is_known() -> None:
    assert read_command("cd models && trtexec --onnx=m.onnx").folder == "models"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no call of trtexec or polygraphy"),
        ("ls -l", "no call of trtexec or polygraphy"),
        ("# trtexec --onnx=m.onnx", "no call of trtexec or polygraphy"),
        ("trtexec --onnx=a\ntrtexec --onnx=b", "2 calls; one is required"),
        ("trtexec --onnx=$MODEL", "the value of $MODEL is not known"),
        ("trtexec --onnx='m.onnx", "No closing quotation"),
    ],
)
def test_what_is_no_command_is_an_error(text: str, said: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        read_command(text)
    assert said in caught.value.message
    assert caught.value.exit_code == 2


def test_nothing_of_a_command_is_run(tmp_path: Path) -> None:
    """Neither substitutions nor what stands beside the program."""
    ran = tmp_path / "ran"
    text = f"touch {ran}; trtexec --onnx=$(touch {ran}) `touch {ran}` ; touch {ran}"
    assert isinstance(read_command(text), Invocation)
    assert not ran.exists()


def test_the_command_is_kept_in_one_line() -> None:
    call = read_command("trtexec \\\n --onnx='my model.onnx' \\\n --fp16")
    assert shlex.split(call.text) == ["trtexec", "--onnx=my model.onnx", "--fp16"]
