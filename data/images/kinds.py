"""Which kind of labels a folder of images has: classes, maps of classes, or boxes."""

from __future__ import annotations

from ...errors import InvalidOption
from ..sample_set import SampleSet
from ..spelling import Spelling

_LABELS = ("labels", "masks", "annotations")


def open_images(spelling: Spelling) -> SampleSet:
    """Return the images of a folder with what the spelling says of their labels.

    Raises:
        QCompileError: If it says two things, or what lies there is none of it.
    """
    given = [key for key in _LABELS if key in spelling.query]
    if len(given) > 1:
        raise InvalidOption(f"data {spelling.spec!r}: {' and '.join(given)} exclude each other")
    if given == ["masks"]:
        from .segmentation import MaskedImages

        return MaskedImages(spelling)
    if given == ["annotations"]:
        from .detection import AnnotatedImages

        return AnnotatedImages(spelling)
    from .classification import ImageFolder

    return ImageFolder(spelling)
