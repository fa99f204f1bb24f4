"""Parsers of DATA: numpy, tables, labels, images, recordings, CIFAR, COCO, Polygraphy's inputs."""

from __future__ import annotations

import base64
import io
import json
import wave
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
from target import Target, file_of

from qcompile.data.archive import load_arrays, read_rows, read_shapes
from qcompile.data.audio.decode import decode as decode_audio
from qcompile.data.cifar import CifarFiles
from qcompile.data.images.decode import decode as decode_image
from qcompile.data.images.detection import AnnotatedImages
from qcompile.data.label_table import read_label_table
from qcompile.data.labels import read_labels
from qcompile.data.polygraphy_json import load_polygraphy
from qcompile.data.spelling import Spelling
from qcompile.data.tables.files import read_table


def npy(content: bytes) -> None:
    """A .npy: both readers agree on its shape."""
    path = file_of(content, "x.npy")
    array = load_arrays(path)[""] if content[:6] == b"\x93NUMPY" else None
    shape = read_shapes(path)[""]
    assert array is None or array.shape == shape
    assert array is None or not array.dtype.hasobject


def npz(content: bytes) -> None:
    """Arrays in a zip archive, at once and by rows."""
    path = file_of(content, "x.npz")
    shapes = read_shapes(path)
    load_arrays(path)
    if all(shape and shape[0] == next(iter(shapes.values()))[0] for shape in shapes.values()):
        for part in read_rows(path, 2):
            assert all(len(array) <= 2 for array in part.values())


def _table(kind: str, suffix: str) -> Callable[[bytes], None]:
    def read(content: bytes) -> None:
        path = file_of(content, f"t{suffix}")
        read_table(Spelling(str(path), kind, str(path)))

    return read


def labels(content: bytes) -> None:
    """A table of labels, and labels of any type as numbers."""
    table = read_label_table(
        file_of(content, "labels.csv"), ["a.png", "b/c.png"], file_of(b"", "root").parent
    )
    read_labels(table.labels, (), where=str)


def label_values(content: bytes) -> None:
    """Labels as JSON lines have them."""
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        return
    if isinstance(values, list):
        read_labels(values, ["cat", "dog"], where=str)


def image(content: bytes) -> None:
    """An image file."""
    for mode in ("RGB", "L"):
        assert decode_image(io.BytesIO(content), mode, "x.png").mode == mode


def audio(content: bytes) -> None:
    """A recording, cut to a second: a header that says more takes no more memory."""
    samples = decode_audio(io.BytesIO(content), 16000, 1.0, "x.wav")
    assert len(samples) <= 16000


def cifar(content: bytes) -> None:
    """CIFAR's binary files."""
    path = file_of(content, "data_batch_1.bin")
    files = CifarFiles(Spelling(str(path), "cifar10", str(path)))
    for index in range(min(len(files.names), 3)):
        files.record(index)


def coco(content: bytes) -> None:
    """COCO's annotations."""
    path = file_of(content, "coco.json")
    found = AnnotatedImages(Spelling("d", "images", str(path.parent), {"annotations": str(path)}))
    from qcompile.data.images.detection import _BoxReader

    reader = object.__new__(_BoxReader)
    reader._images, reader._numbers = found, {number: place for place, number in enumerate(found.categories)}
    for boxes in found.boxes:
        for box in boxes:
            reader._row(box, "image")


def polygraphy(content: bytes) -> None:
    """Polygraphy's saved inputs."""
    load_polygraphy(file_of(content, "inputs.json"))


def _npy(array: Any) -> bytes:
    written = io.BytesIO()
    np.save(written, array)
    return written.getvalue()


def _npz(**arrays: Any) -> bytes:
    written = io.BytesIO()
    np.savez(written, **arrays)
    return written.getvalue()


def _deflated() -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", _npy(np.zeros((4, 100), np.int8)))
    return written.getvalue()


def _image(kind: str, mode: str) -> bytes:
    from PIL import Image

    written = io.BytesIO()
    Image.new(mode, (5, 3)).save(written, kind)
    return written.getvalue()


def _wav() -> bytes:
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(64))
    return written.getvalue()


_COCO = {
    "images": [{"id": 1, "file_name": "a.png", "height": 4}, {"id": "2", "file_name": "b.png"}],
    "annotations": [{"image_id": 1, "bbox": [0, 1.5, 2, 3], "category_id": 7, "area": 6, "iscrowd": 0}],
    "categories": [{"id": 7, "name": "cat"}, {"id": 9}],
}
_ARRAY = base64.b64encode(_npy(np.arange(3, dtype=np.float32))).decode()
_POLYGRAPHY = [{"x": {"array": _ARRAY, "polygraphy_class": "ndarray"}, "polygraphy_class": "dict"}]

TARGETS = (
    Target(
        "npy",
        npy,
        (
            _npy(np.arange(6).reshape(2, 3)),
            _npy(np.asfortranarray(np.ones((2, 3)))),
            _npy(np.float32(1)),
            _npy(np.zeros(2, [("a", "i4"), ("b", "f8", (2,))])),
            _npy(np.array(["ab", "c"])),
        ),
        words=(
            "'shape': (1152921504606846976,)",
            "'|O'",
            "'fortran_order': True",
            "(-1,)",
            "'descr': '<f8'",
            "(" * 200,
            "2**9",
            "\x93NUMPY\x02\x00",
        ),
        longest=512,
    ),
    Target(
        "npz",
        npz,
        (
            _npz(x=np.ones((3, 2)), labels=np.arange(3)),
            _deflated(),
            _npz(x=np.asfortranarray(np.ones((2, 3)))),
        ),
        longest=2048,
    ),
    Target("text_table", _table("text", ".txt"), (b"one\ntwo\r\n\nthree", b"\xef\xbb\xbfx\n"), longest=256),
    Target(
        "jsonl",
        _table("jsonl", ".jsonl"),
        (b'{"text": "a", "label": 1}\n{"text": "b"}\n', b"[]\n"),
        words=('{"', "[" * 3000, "NaN", "\ud83d".encode("utf-8", "surrogatepass").decode("latin1")),
        longest=4096,
    ),
    Target(
        "csv",
        _table("csv", ".csv"),
        (b'text,label\n"a, b",1\nc,2\n', b'"x\ny",z\n1,2\n'),
        words=('"', '""', "\0", "\r"),
        longest=512,
    ),
    Target(
        "label_table",
        labels,
        (b"file,label\na.png,cat\nb/c.png,2\n", b"a,1\nc,2\n"),
        words=('"', "\0", "1e999", "²"),
        longest=512,
    ),
    Target(
        "label_values",
        label_values,
        (b'["cat", "dog"]', b"[1, 2.5, true]", b'[[1, -100], ["x"]]'),
        is_json=True,
        longest=512,
    ),
    Target(
        "image",
        image,
        tuple(
            _image(kind, mode)
            for kind, mode in (
                ("PNG", "P"),
                ("JPEG", "L"),
                ("GIF", "P"),
                ("BMP", "RGB"),
                ("TIFF", "I;16"),
                ("PPM", "RGB"),
                ("WEBP", "RGB"),
            )
        ),
        longest=2048,
    ),
    Target("audio", audio, (_wav(),), longest=512),
    Target("cifar", cifar, (bytes(3073), bytes([9]) * 6146), longest=6200),
    Target("coco", coco, (json.dumps(_COCO).encode(),), is_json=True, longest=2048),
    Target("polygraphy_inputs", polygraphy, (json.dumps(_POLYGRAPHY).encode(),), is_json=True, longest=2048),
)
