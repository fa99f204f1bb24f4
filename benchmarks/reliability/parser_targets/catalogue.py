"""Every target by its name."""

from __future__ import annotations

import calibrations
import documents
import samples
import spellings
import travelling
from target import Target

TARGETS: dict[str, Target] = {
    one.name: one
    for part in (spellings, documents, calibrations, samples, travelling)
    for one in part.TARGETS
}
