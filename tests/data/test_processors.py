"""Texts and recordings, against transformers' tokenizers and feature extractors, soundfile and scipy."""

from __future__ import annotations

import csv
import io
import json
import struct
import wave
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from batches_to_read import labels_of
from scipy.signal import resample_poly
from tokenizer_files import save_tokenizer

from qcompile.data.batches import Data
from qcompile.data.processors import decode_audio, resampling_ratio
from qcompile.data.readers import Batch
from qcompile.data.table import read_labels
from qcompile.errors import DataError, InvalidOption
from qcompile.model.sources.preprocessing import AudioPreprocessing, TextPreprocessing, as_json
from qcompile.spec.tensors import TensorInfo

LINES = ["the cat sat", "a dog", "", "the dog ran far away and back again", "now"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def inputs(
    folder: Path, *, length: int | str = "length", dtype: str = "int64", **options: Any
) -> list[TensorInfo]:
    names = options.pop("names", ("input_ids", "attention_mask"))
    said = as_json(TextPreprocessing(tokenizer=str(folder), inputs=names, **{"multiple": 4, **options}))
    return [TensorInfo(name, dtype, ("batch", length), preprocessing=said) for name in names]


def write(path: Path, rows: list[Any]) -> str:
    """Write lines of text, or of JSON; return the spelling."""
    texts = rows if path.suffix == ".txt" else map(json.dumps, rows)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return str(path)


def alone(folder: Path, *text: Any) -> list[int]:
    from transformers import AutoTokenizer

    return list(AutoTokenizer.from_pretrained(folder)(*text)["input_ids"])


def test_texts_are_made_of_the_words_of_a_vocabulary(tokenizer: Path) -> None:
    from transformers import AutoTokenizer

    known = AutoTokenizer.from_pretrained(tokenizer).get_vocab()
    ranks = sorted(number for word, number in known.items() if word.isalpha())
    data = Data(f"vocabulary:{tokenizer}?samples=200", inputs(tokenizer), batch_size=1)
    lengths, found = [], Counter[int]()
    for batch in data:
        [ids] = batch.feeds["input_ids"]
        row = ids[batch.feeds["attention_mask"][0] == 1][1:-1]  # between [CLS] and [SEP]
        lengths.append(len(row))
        found.update(row.tolist())
    assert (len(lengths), min(lengths) >= 4, max(lengths) < 96) == (200, True, True)
    assert set(found) == set(ranks), "words, which are one token each"
    share = sum(found[number] for number in ranks[:5]) / found.total()
    assert abs(share - np.log(6) / np.log(len(ranks) + 1)) < 0.05
    assert "prefer real texts" in data.notes()[0]
    again = Data(f"vocabulary:{tokenizer}?samples=200", inputs(tokenizer), batch_size=1)
    assert again.digest() == data.digest()
    assert len(list(Data(f"vocabulary:{tokenizer}", inputs(tokenizer), batch_size=1))) == 64


def test_lines_are_padded_to_the_longest_of_their_batch_and_to_the_multiple(
    tmp_path: Path, tokenizer: Path
) -> None:
    data = Data(write(tmp_path / "a.txt", LINES), inputs(tokenizer), batch_size=3)
    batches = list(data)
    assert [one.feeds["input_ids"].shape for one in batches] == [(3, 12), (1, 4)]
    texts = [text for text in LINES if text]
    rows = [row for one in batches for row in zip(*one.feeds.values(), strict=True)]
    for text, (ids, mask) in zip(texts, rows, strict=True):
        expected = alone(tokenizer, text)
        assert ids[mask == 1].tolist() == expected
        assert (ids[mask == 0] == 0).all()
        assert mask.tolist() == [1] * len(expected) + [0] * (len(mask) - len(expected))
    assert (data.total, batches[0].labels) == (4, None)
    assert batches[0].where == "a.txt line 1 to a.txt line 4"


def test_padding_on_the_left_and_positions_follow_the_mask(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "left", side="left", pad=False)
    names = ("input_ids", "attention_mask", "position_ids")
    [batch] = Data(write(tmp_path / "a.txt", ["the cat", "now and again"]), inputs(folder, names=names))
    assert batch.feeds["attention_mask"].tolist()[0] == [0] * 4 + [1] * 4
    assert batch.feeds["position_ids"].tolist()[0] == [0, 0, 0, 0, 0, 1, 2, 3]
    assert batch.feeds["input_ids"][0, 4:].tolist() == alone(folder, "the cat")


def test_a_fixed_length_and_the_longest_cut_and_pad(tmp_path: Path, tokenizer: Path) -> None:
    spec = write(tmp_path / "a.txt", LINES)
    [batch] = Data(spec, inputs(tokenizer, length=6, dtype="int32"))
    assert (batch.feeds["input_ids"].shape, batch.feeds["input_ids"].dtype) == ((4, 6), np.int32)
    assert batch.feeds["input_ids"][2].tolist() == [2, *alone(tokenizer, LINES[3])[1:5], 3]
    [batch] = Data(f"{spec}?length=5", inputs(tokenizer))
    assert batch.feeds["input_ids"].shape == (4, 5)
    [batch] = Data(spec, inputs(tokenizer, padding="max_length", max_length=20))
    assert batch.feeds["input_ids"].shape == (4, 20)


@pytest.mark.parametrize(("bucket", "multiple"), [("true", 4), ("8", 8)])
def test_buckets_hold_every_text_once_and_less_padding(
    tmp_path: Path, tokenizer: Path, bucket: str, multiple: int
) -> None:
    spec = write(tmp_path / "a.txt", [" ".join(["cat"] * (1 + 7 * index % 20)) for index in range(40)])

    def read(spec: str) -> tuple[list[list[int]], list[int]]:
        feeds = [batch.feeds for batch in Data(spec, inputs(tokenizer), batch_size=5)]
        rows = [ids[mask == 1].tolist() for one in feeds for ids, mask in zip(*one.values(), strict=True)]
        return rows, [one["input_ids"].shape[1] for one in feeds]

    (plain, widths), (grouped, lengths) = read(spec), read(f"{spec}?bucket={bucket}")
    assert sorted(plain) == sorted(grouped)
    assert sum(lengths) < sum(widths)
    assert lengths == sorted(lengths)
    assert all(length % multiple == 0 for length in lengths)
    notes = Data(f"{spec}?bucket={bucket}", inputs(tokenizer), batch_size=5).notes()
    shapes = ", ".join(f"{length} ({lengths.count(length)})" for length in sorted(set(lengths)))
    assert notes == [f"padded lengths (batches): {shapes}"]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "tsv"])
def test_columns_are_found_by_name_and_labels_numbered(tmp_path: Path, tokenizer: Path, suffix: str) -> None:
    rows, path = [("the cat", "good"), ('a "dog", far', "bad"), ("now", "good")], tmp_path / f"a.{suffix}"
    if suffix == "jsonl":
        write(path, [{"sentence": text, "label": label} for text, label in rows])
    else:
        with path.open("w", newline="") as file:
            table = csv.writer(file, delimiter="\t" if suffix == "tsv" else ",")
            table.writerows([("sentence", "label"), *rows])
    for classes, expected in (((), [1, 0, 1]), (("good", "bad"), [0, 1, 0])):
        [batch] = Data(str(path), inputs(tokenizer, classes=classes))
        assert batch.labels.tolist() == expected
    ids = alone(tokenizer, rows[1][0])
    assert batch.feeds["input_ids"][1, : len(ids)].tolist() == ids
    with pytest.raises(
        InvalidOption, match=r"column=sentense: no such column; found sentence, label\n.*column=sentence"
    ):
        Data(f"{path}?column=sentense", inputs(tokenizer)).total  # noqa: B018


@pytest.mark.parametrize(
    ("query", "columns"), [("", ("premise", "hypothesis")), ("?column=x,premise", ("x", "premise"))]
)
def test_pairs_are_two_columns(tmp_path: Path, tokenizer: Path, query: str, columns: tuple[str, str]) -> None:
    row = {"premise": "the cat sat", "hypothesis": "a dog", "x": "now", "label": 2.5}
    path = write(tmp_path / "a.jsonl", [row, {**row, "label": 1}])
    names = ("input_ids", "attention_mask", "token_type_ids")
    [batch] = Data(f"{path}{query}", inputs(tokenizer, names=names))
    expected = alone(tokenizer, *(row[name] for name in columns))
    assert batch.feeds["input_ids"][0, : len(expected)].tolist() == expected
    assert batch.feeds["token_type_ids"][0].max() == 1
    assert (batch.labels.dtype, batch.labels.tolist()) == (np.float32, [2.5, 1.0])


def test_labels_of_words_are_those_of_their_first_tokens(tmp_path: Path, tokenizer: Path) -> None:
    rows = [{"tokens": ["cat", "xyz", "mat"], "ner_tags": [1, 2, 3]}, {"tokens": ["ab"], "ner_tags": [4]}]
    [batch] = Data(write(tmp_path / "a.jsonl", rows), inputs(tokenizer))
    # [CLS] cat x ##y ##z mat [SEP] [PAD]; [CLS] a ##b [SEP]
    assert batch.labels.tolist() == [[-100, 1, 2, -100, -100, 3, -100, -100], [-100, 4, *[-100] * 6]]
    path = write(tmp_path / "a.jsonl", [{"tokens": ["cat"], "ner_tags": [1, 2]}])
    with pytest.raises(DataError, match=r"a\.jsonl row 0: 2 labels; one for each of 1 word"):
        list(Data(path, inputs(tokenizer)))


def test_a_language_model_has_its_own_tokens_for_labels(tmp_path: Path, tokenizer: Path) -> None:
    [batch] = Data(write(tmp_path / "a.txt", LINES), inputs(tokenizer, task="language-model"))
    mask = batch.feeds["attention_mask"] == 1
    assert (batch.labels[mask] == batch.feeds["input_ids"][mask]).all()
    assert (batch.labels[~mask] == -100).all()


def test_a_split_is_a_file_of_the_folder(tmp_path: Path, tokenizer: Path) -> None:
    write(tmp_path / "test.txt", ["the cat"])
    assert Data(f"text:{tmp_path}?split=test", inputs(tokenizer)).total == 1
    with pytest.raises(InvalidOption, match="split=train: no such split; found test"):
        Data(f"text:{tmp_path}?split=train", inputs(tokenizer)).total  # noqa: B018


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"\xff\xfe", r"a\.txt: cannot be read by datasets .*can't decode byte 0xff in position 0"),
        ("a.txt", b"\n \n", "holds no samples"),
        ("a.jsonl", b'{"text": "a"}\n{"text"', "read by datasets .*JSON parse error.* in row 1"),
        ("a.jsonl", b"[1]\n", r"a\.jsonl row 0: '1'; a text or a list of words"),
        ("a.jsonl", b'{"text": 5}\n', r"a\.jsonl row 0: '5'; a text or a list of words"),
        ("a.jsonl", b'{"text": "a", "label": 1}\n{"text": "b"}', r"a\.jsonl row 1: label None; a number"),
        ("a.jsonl", b'{"text": "a", "label": {}}', r"a\.jsonl row 0: label \{\}; a number"),
        ("a.csv", b"text,label\na,1\nb,c,2\n", "read by datasets .*Expected 2 fields in line 3"),
        ("a.csv", b"body,label\na,1\n", r"found body, label\n  hint: add \?column="),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_named(
    tmp_path: Path, tokenizer: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises((DataError, InvalidOption), match=message):
        list(Data(str(tmp_path / name), inputs(tokenizer)))


def test_without_a_tokenizer_the_way_to_give_it_is_said(tmp_path: Path) -> None:
    spec = write(tmp_path / "a.txt", LINES)
    with pytest.raises(InvalidOption, match=r"is unknown\n  hint: add \?preprocessing=hf:NAME_OR_FOLDER"):
        list(Data(spec, [TensorInfo("input_ids", "int64", ("batch", "length"))]))
    with pytest.raises(DataError, match=r"tokenizer no/such: cannot be loaded .*\n  hint: give a folder"):
        list(Data(spec, inputs(Path("no/such"))))


def test_samples_of_texts_are_halves_by_content_and_balanced(tmp_path: Path, tokenizer: Path) -> None:
    words = ["cat", "mat", "dog", "far"]
    texts = [" ".join(words[row // 2 // 4**place % 4] for place in range(3)) for row in range(60)]
    rows = [{"text": text, "label": row % 3} for row, text in enumerate(texts)]
    path = write(tmp_path / "a.jsonl", rows)

    def read(query: str) -> list[Batch]:
        return list(Data(f"{path}?{query}", inputs(tokenizer), batch_size=1))

    first, second = (
        [str(batch.feeds["input_ids"]) for batch in read(f"part={part}")]
        for part in ("calibration", "evaluation")
    )
    assert not set(first) & set(second)
    assert len(first) + len(second) == 60
    assert sorted(labels_of(read("samples=9")) or []) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def info(
    *, name: str = "input_values", shape: tuple[int | str, ...] = ("n", "t"), **options: Any
) -> TensorInfo:
    said = AudioPreprocessing(**{"inputs": (name,), "rate_hz": 8000, "normalize": False, **options})
    return TensorInfo(name, "float32", shape, preprocessing=as_json(said))


def tone(
    path: Path, hz: float = 440.0, *, seconds: float = 0.05, rate: int = 8000, channels: int = 1
) -> np.ndarray:
    """Write a tone, and return what was written, float32 [time, channels]."""
    path.parent.mkdir(parents=True, exist_ok=True)
    at = np.arange(int(seconds * rate)) / rate
    samples = np.stack([np.sin(2 * np.pi * hz * (1 + channel) * at) * 0.5 for channel in range(channels)], 1)
    soundfile.write(path, samples, rate, subtype="FLOAT" if path.suffix == ".wav" else None)
    return soundfile.read(path, dtype="float32", always_2d=True)[0]


@pytest.mark.parametrize("suffix", [".wav", ".flac"])
def test_recordings_are_mono_and_padded_behind(tmp_path: Path, suffix: str) -> None:
    first = tone(tmp_path / f"a{suffix}", channels=2)
    second = tone(tmp_path / f"b{suffix}", seconds=0.03)
    [batch] = Data(str(tmp_path), [info()])
    values = batch.feeds["input_values"]
    assert (values.shape, values.dtype) == ((2, 400), np.float32)
    np.testing.assert_allclose(values[0], first.mean(1), atol=1e-7)
    np.testing.assert_array_equal(values[1], np.pad(second[:, 0], (0, 160)))
    assert batch.labels is None


def test_another_rate_is_resampled_by_scipys_polyphase_filter(tmp_path: Path) -> None:
    samples = tone(tmp_path / "a.wav", rate=44_100, seconds=0.1)[:, 0]
    [batch] = Data(str(tmp_path), [info()])
    [values] = batch.feeds["input_values"]
    np.testing.assert_array_equal(values, resample_poly(samples, 80, 441).astype(np.float32))
    # the tone is the same: its peak in the spectrum stays at 440 Hz
    assert abs(np.argmax(np.abs(np.fft.rfft(values))) * 8000 / len(values) - 440) < 10


def test_long_recordings_are_cut_and_a_fixed_length_pads(tmp_path: Path) -> None:
    tone(tmp_path / "a.wav", seconds=0.5)
    [batch] = Data(str(tmp_path), [info(max_seconds=0.1)])
    assert batch.feeds["input_values"].shape == (1, 800)
    [batch] = Data(str(tmp_path), [info(shape=("n", 1, 6000))])
    assert batch.feeds["input_values"].shape == (1, 1, 6000)
    assert not batch.feeds["input_values"][0, 0, 4000:].any()


def test_normalizing_equals_wav2vec2s_extractor(tmp_path: Path) -> None:
    from transformers import Wav2Vec2FeatureExtractor

    waves = [tone(tmp_path / f"{number}.wav", 200 + 50 * number, seconds=0.04)[:, 0] for number in range(3)]
    theirs = Wav2Vec2FeatureExtractor(sampling_rate=8000, do_normalize=True)(
        waves, sampling_rate=8000, return_tensors="np", padding=True
    )
    [batch] = Data(str(tmp_path), [info(normalize=True)])
    np.testing.assert_allclose(batch.feeds["input_values"], theirs["input_values"], atol=1e-6)


@pytest.mark.parametrize("kind", ["Whisper", "Wav2Vec2"])
def test_a_feature_extractor_makes_what_it_makes_itself(tmp_path: Path, kind: str) -> None:
    import transformers

    options = {"chunk_length": 1} if kind == "Whisper" else {"return_attention_mask": True}
    extractor = getattr(transformers, f"{kind}FeatureExtractor")(**options)
    extractor.save_pretrained(tmp_path / "extractor")
    waves = [
        tone(tmp_path / "set" / f"{number}.wav", seconds=0.04 * number, rate=16_000)[:, 0]
        for number in (1, 2)
    ]
    padding = {"padding": True} if kind == "Wav2Vec2" else {}
    theirs = extractor(waves, sampling_rate=16_000, return_tensors="np", **padding)
    [name, *_] = theirs
    names = (name, "attention_mask") if kind == "Wav2Vec2" else (name,)
    said = AudioPreprocessing(inputs=names, extractor=str(tmp_path / "extractor"))
    axes = ("n", *["t"] * (theirs[name].ndim - 1))
    infos = [TensorInfo(name, "float32", axes, preprocessing=as_json(said))]
    infos += [TensorInfo("attention_mask", "int64", ("n", "t"))] if kind == "Wav2Vec2" else []
    [batch] = Data(str(tmp_path / "set"), infos)
    assert set(batch.feeds) == set(names)
    for one in names:
        np.testing.assert_allclose(batch.feeds[one], theirs[one], atol=1e-6)


def test_class_folders_or_metadata_are_labels(tmp_path: Path) -> None:
    for number, name in enumerate(("yes/a", "no/b", "yes/c")):
        tone(tmp_path / f"{name}.wav", 200 + number)

    def labels(query: str = "", **options: Any) -> Any:
        [batch] = Data(f"{tmp_path}{query}", [info(**options)])
        return None if batch.labels is None else batch.labels.tolist()

    assert labels() == [0, 1, 1]  # no/b, yes/a, yes/c
    assert labels(classes=("yes", "no")) == [1, 0, 0]
    assert labels(task="speech-recognition") is None
    rows = "file_name,label,text\nno/b.wav,7,go on\nyes/a.wav,4,stop\nyes/c.wav,7,007\n"
    (tmp_path / "metadata.csv").write_text(rows)
    assert labels() == [7, 4, 7]
    assert labels("?label=text") == [1, 2, 0]
    assert labels(task="speech-recognition") == ["go on", "stop", "007"]
    assert labels("?label=label", task="speech-recognition") == ["7", "4", "7"]
    first = Data(str(tmp_path), ()).digest()
    (tmp_path / "metadata.csv").write_text(rows.replace("yes/a.wav", "yes/d.wav"))
    assert Data(str(tmp_path), ()).digest() != first
    with pytest.raises(DataError, match=r"metadata\.csv: has no row for yes/a\.wav"):
        labels()


def test_what_is_no_recording_is_named(tmp_path: Path) -> None:
    tone(tmp_path / "a.wav")
    (tmp_path / "b.wav").write_bytes((tmp_path / "a.wav").read_bytes()[:20])
    unknown = TensorInfo("x", "float32", ("n", "t"))
    for input_, message in (
        (info(), r"b\.wav: cannot be decoded as a recording .*\n  hint: remove or replace"),
        (unknown, r"preprocessing of recordings .* is unknown\n  hint: add \?preprocessing=hf:"),
        (info(extractor="no/such"), "feature extractor no/such: cannot be loaded"),
    ):
        with pytest.raises((DataError, InvalidOption), match=message):
            list(Data(str(tmp_path), [input_]))
    soundfile.write(tmp_path / "b.wav", np.zeros(0), 8000)
    with pytest.raises(DataError, match=r"b\.wav: holds no samples"):
        list(Data(str(tmp_path), [info()]))


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


@pytest.mark.parametrize(
    ("stored", "rate"), [(44100, 16000), (8000, 16000), (11025, 16000), (100, 768_000), (767_999, 16000)]
)
def test_common_rates_are_exact_and_others_have_a_short_filter(stored: int, rate: int) -> None:
    up, down = resampling_ratio(stored, rate).as_integer_ratio()
    assert max(up, down) <= 50_000
    assert up / down == pytest.approx(rate / stored, rel=1e-4 if stored == 767_999 else 1e-15)


def test_a_label_of_thousands_of_digits_is_a_name() -> None:
    assert len(read_labels([10**400, 1], (), where=str)[0]) == 2
