"""Figures of data that no float holds, and headers that promise more than there is."""

from __future__ import annotations

import io
import struct
import wave
from pathlib import Path

import pytest

from qcompile.data.arrays import load_arrays
from qcompile.data.images import decode as decode_image
from qcompile.data.preparing import read_labels
from qcompile.data.processors import decode_audio, resampling_ratio
from qcompile.errors import DataError, InvalidOption
from qcompile.model.preprocessing import read_preprocessing

IMAGE = {"kind": "image", "height": 8, "width": 8}


def wav(rate_hz: int, frames: int = 100) -> bytearray:
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(bytes(2 * frames))
    return bytearray(written.getvalue())


@pytest.mark.parametrize("rate_hz", [1, 99, 768_001, 2**31 - 1])
def test_a_rate_whose_filter_would_take_gigabytes_is_refused(rate_hz: int) -> None:
    with pytest.raises(DataError, match=r"samples per second; 100 to 768000 are required"):
        decode_audio(io.BytesIO(wav(rate_hz)), 16000, 1.0, "x.wav")


def test_a_recording_that_promises_gigabytes_is_cut_to_what_there_is() -> None:
    content = wav(16000)
    content[40:44] = struct.pack("<I", 2**32 - 2)
    assert len(decode_audio(io.BytesIO(content), 16000, 1e6, "x.wav")) <= 200


@pytest.mark.parametrize(("own", "rate"), [(44100, 16000), (8000, 16000), (11025, 16000), (100, 768_000)])
def test_common_rates_are_exact(own: int, rate: int) -> None:
    up, down = resampling_ratio(own, rate).as_integer_ratio()
    assert up * own == down * rate


def test_a_rate_that_shares_no_factor_has_a_short_filter() -> None:
    up, down = resampling_ratio(767_999, 16000).as_integer_ratio()
    assert max(up, down) <= 50_000
    assert up / down == pytest.approx(16000 / 767_999, rel=1e-4)


def test_a_label_of_thousands_of_digits_is_a_name() -> None:
    assert len(read_labels([10**400, 1], (), where=str)[0]) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"height": 0}, {"height": 2**40}, {"scale": float("nan")}, {"std": [0.0, 1.0, 1.0]}, {"fill": 256},
        {"mean": [float("inf")] * 3}, {"kind": ["image"]}, {"kind": {}}, {"mean": ["\ud800"]},
        {"width": 10**400},
    ],
)  # fmt: skip
def test_preprocessing_that_no_image_survives_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidOption, match="preprocessing of kind"):
        read_preprocessing({**IMAGE, **change})


def npy(shape: str, descr: str = "'<f4'") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(16)


@pytest.mark.parametrize(
    "content",
    [
        npy("(1152921504606846976,)"), npy("(4294967296, 4294967296)"), npy("(-1,)"), npy("(2,)", "'|O'"),
        npy("(True,)"), npy("(" * 90 + "1" + ",)" * 90), npy("(4,)")[:-5],
    ],
    ids=range(7),
)  # fmt: skip
def test_an_array_whose_header_lies_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with pytest.raises(DataError, match="cannot be read as numpy data"):
        load_arrays(path)


def test_an_image_of_billions_of_pixels_is_refused() -> None:
    """Pillow refuses it by its header, before it decodes a pixel."""
    from zlib import crc32

    head = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", crc32(head))
    with pytest.raises(DataError, match="cannot be decoded as an image"):
        decode_image(io.BytesIO(content), "RGB", "x.png")
