"""Random weights that need not travel: they are drawn from their names, here and again on the GPU host.

A graph that is carried says for each weight how it is drawn, and the digest that it must then have.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

_MARK = "drawn "
_LEAST_BYTES = 1024
forms: dict[str, str] | None = None
"""Digest of what was drawn, in each form that graphs have it in, to how it is drawn; None: nobody strips."""


def draw(name: str, shape: Sequence[int], bound: float) -> Any:
    """Return float32 values from -bound to bound: the same for a name and a shape on every machine."""
    # numpy's NEP 19: the stream of RandomState never changes.
    state = np.random.RandomState(zlib.crc32(f"{name} {tuple(shape)}".encode()))
    values = state.random_sample(tuple(shape))
    values -= 0.5
    values *= 2 * bound
    array = values.astype(np.float32)
    for kind in ("float32", "float16") if forms is not None else ():
        for transposed in (False, True)[: array.ndim]:
            digest = hashlib.sha256(_content(array, kind, transposed=transposed)).hexdigest()
            how = {"name": name, "shape": list(array.shape), "bound": bound, "transposed": transposed}
            forms[digest] = _MARK + json.dumps({**how, "kind": kind, "sha256": digest})
    return array


def strip(model: Any) -> None:
    """Take out of a graph what was drawn since `forms` is a dict."""
    for tensor in model.graph.initializer:
        how = (forms or {}).get(hashlib.sha256(tensor.raw_data).hexdigest())
        if how and len(tensor.raw_data) >= _LEAST_BYTES:
            tensor.doc_string = how
            tensor.ClearField("raw_data")


def fill(model: Any) -> None:
    """Draw the weights of a graph again; ValueError if this numpy draws other ones."""
    for tensor in model.graph.initializer:
        if tensor.doc_string.startswith(_MARK):
            how = json.loads(tensor.doc_string[len(_MARK) :])
            array = draw(how["name"], how["shape"], how["bound"])
            content = _content(array, how["kind"], transposed=how["transposed"])
            if hashlib.sha256(content).hexdigest() != how["sha256"]:
                raise ValueError(f"numpy {np.__version__} draws other values for {how['name']}")
            tensor.raw_data = content
            tensor.ClearField("doc_string")


def _content(array: Any, kind: str, *, transposed: bool) -> bytes:
    return np.ascontiguousarray(array.T if transposed else array, kind).tobytes()
