"""The checksum that files of counts hold inside: a changed byte is found without the manifest beside them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def checksum(header: Mapping[str, Any], counts: Mapping[str, NDArray[Any]]) -> str:
    """Return "sha256:..." over a header and the counts of every tensor.

    Args:
        header: As it is written, or as it was read; its own `checksum` does not count.
        counts: Tensor name to counts.
    """
    plain = {key: value for key, value in header.items() if key != "checksum"}
    total = hashlib.sha256(_plain_text(plain))
    for name in sorted(counts):
        array = np.ascontiguousarray(counts[name], counts[name].dtype.newbyteorder("<"))
        total.update(_plain_text([name, str(array.dtype), list(array.shape)]))
        total.update(array.tobytes())
    return f"sha256:{total.hexdigest()}"


def _plain_text(value: object) -> bytes:
    """JSON of one form: equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
