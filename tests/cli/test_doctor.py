"""`qcompile doctor`: what it prints, its JSON, and what it refuses."""

from __future__ import annotations

import json
import sys

from commands import Qc


def test_doctor_prints_the_machine_the_precisions_and_the_extras(done: Qc) -> None:
    said = done("doctor").out
    for text in (
        "processor: ", " memory, ", "INT8 on ", "what an artifact computes in here", "emulated",
        "concluded from instruction sets and tables, not measured", "qcompile[tensorflow]", "TensorFlow by ",
    ):  # fmt: skip
        assert text in said
    assert "--target" in said
    assert "`target`" not in said


def test_doctor_answers_for_gpus_that_are_not_here(done: Qc) -> None:
    said = done("doctor", "--gpu", "sm75,8.9").out
    assert "sm75 Turing: Tensor Cores take FP16, INT8, INT4" in said
    assert "sm89 Ada Lovelace: Tensor Cores take TF32, FP16, BF16, INT8, INT4, FP8" in said
    assert (
        "sm61 Pascal (not in the tables: as sm60): no Tensor Cores\n" in done("doctor", "--gpu", "sm61").out
    )


def test_the_json_holds_all_that_is_printed(done: Qc) -> None:
    found = json.loads(done("doctor", "--gpu", "sm86", "--json").out)
    assert found["types"][0]["types"] == ["TF32", "FP16", "BF16", "INT8", "INT4"]
    assert found["machine"]["features"] is not None
    assert {one["state"] for one in found["precisions"]} <= {"fast", "runs", "emulated", "builds", "no"}
    assert {one["extra"] for one in found["extras"]} >= {"models", "data", "metrics", "tensorflow"}
    assert found["tensorflow"]["python"] == sys.executable


def test_what_is_no_gpu_or_no_interpreter_is_refused(qc: Qc) -> None:
    said = qc("doctor", "--gpu", "4090")
    assert (said.code, "a compute capability from sm50 on is required" in said.err) == (2, True)
    said = qc("doctor", "--python", "tensorrt=/usr/bin/python3")
    assert (said.code, "tensorflow=INTERPRETER is required" in said.err) == (2, True)
