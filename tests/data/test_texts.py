"""Texts through a tokenizer, against what transformers' own call gives for each text alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizer_files import save_tokenizer

from qcompile.data.batches import Data
from qcompile.errors import DataError, InvalidOption
from qcompile.model.preprocessing import TextPreprocessing, as_json
from qcompile.tensors import TensorInfo

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


def lines(path: Path, texts: list[str]) -> str:
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return str(path)


def alone(folder: Path, *text: Any) -> list[int]:
    from transformers import AutoTokenizer

    return list(AutoTokenizer.from_pretrained(folder)(*text)["input_ids"])


def test_lines_are_padded_to_the_longest_of_their_batch_and_to_the_multiple(
    tmp_path: Path, tokenizer: Path
) -> None:
    data = Data(lines(tmp_path / "a.txt", LINES), inputs(tokenizer), batch_size=3)
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
    [batch] = Data(lines(tmp_path / "a.txt", ["the cat", "now and again"]), inputs(folder, names=names))
    assert batch.feeds["attention_mask"].tolist()[0] == [0] * 4 + [1] * 4
    assert batch.feeds["position_ids"].tolist()[0] == [0, 0, 0, 0, 0, 1, 2, 3]
    assert batch.feeds["input_ids"][0, 4:].tolist() == alone(folder, "the cat")


def test_a_fixed_length_and_the_longest_cut_and_pad(tmp_path: Path, tokenizer: Path) -> None:
    spec = lines(tmp_path / "a.txt", LINES)
    [batch] = Data(spec, inputs(tokenizer, length=6, dtype="int32"))
    assert (batch.feeds["input_ids"].shape, batch.feeds["input_ids"].dtype) == ((4, 6), np.int32)
    assert batch.feeds["input_ids"][2].tolist() == [2, *alone(tokenizer, LINES[3])[1:5], 3]
    [batch] = Data(f"{spec}?length=5", inputs(tokenizer))
    assert batch.feeds["input_ids"].shape == (4, 5)
    [batch] = Data(spec, inputs(tokenizer, padding="max_length", max_length=20))
    assert batch.feeds["input_ids"].shape == (4, 20)


@pytest.mark.parametrize("bucket", ["true", "8"])
def test_buckets_hold_every_text_once_and_less_padding(tmp_path: Path, tokenizer: Path, bucket: str) -> None:
    texts = [" ".join(["cat"] * (1 + 7 * index % 20)) for index in range(40)]
    spec = lines(tmp_path / "a.txt", texts)

    def ids(given: str) -> tuple[list[list[int]], int, list[int]]:
        batches = list(Data(given, inputs(tokenizer), batch_size=5))
        rows = [
            row[mask == 1].tolist() for one in batches for row, mask in zip(*one.feeds.values(), strict=True)
        ]
        return (
            rows,
            sum(one.feeds["input_ids"].size for one in batches),
            [one.feeds["input_ids"].shape[1] for one in batches],
        )

    plain, size, _ = ids(spec)
    grouped, smaller, lengths = ids(f"{spec}?bucket={bucket}")
    assert sorted(plain) == sorted(grouped)
    assert smaller < size
    assert lengths == sorted(lengths)
    assert all(length % (4 if bucket == "true" else 8) == 0 for length in lengths)
    notes = Data(f"{spec}?bucket={bucket}", inputs(tokenizer), batch_size=5).notes()
    shapes = ", ".join(f"{length} ({lengths.count(length)})" for length in sorted(set(lengths)))
    assert notes == [f"padded lengths (batches): {shapes}"]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "tsv"])
def test_columns_are_found_by_name_and_labels_numbered(tmp_path: Path, tokenizer: Path, suffix: str) -> None:
    rows = [("the cat", "good"), ('a "dog", far', "bad"), ("now", "good")]
    path = tmp_path / f"a.{suffix}"
    if suffix == "jsonl":
        path.write_text(
            "".join(json.dumps({"sentence": text, "label": label}) + "\n" for text, label in rows)
        )
    else:
        import csv

        with path.open("w", newline="") as file:
            csv.writer(file, delimiter="\t" if suffix == "tsv" else ",").writerows(
                [("sentence", "label"), *rows]
            )
    [batch] = Data(str(path), inputs(tokenizer))
    assert batch.labels is not None
    assert batch.labels.tolist() == [1, 0, 1]
    assert batch.feeds["input_ids"][1, : len(alone(tokenizer, rows[1][0]))].tolist() == alone(
        tokenizer, rows[1][0]
    )
    [batch] = Data(str(path), inputs(tokenizer, classes=("good", "bad")))
    assert batch.labels is not None
    assert batch.labels.tolist() == [0, 1, 0]
    with pytest.raises(
        InvalidOption, match=r"column=sentense: no such column; found sentence, label\n.*column=sentence"
    ):
        Data(f"{path}?column=sentense", inputs(tokenizer)).total  # noqa: B018


@pytest.mark.parametrize(
    ("query", "columns"), [("", ("premise", "hypothesis")), ("?column=x,premise", ("x", "premise"))]
)
def test_pairs_are_two_columns(tmp_path: Path, tokenizer: Path, query: str, columns: tuple[str, str]) -> None:
    row = {"premise": "the cat sat", "hypothesis": "a dog", "x": "now", "label": 2.5}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps({**row, "label": 1}) + "\n")
    names = ("input_ids", "attention_mask", "token_type_ids")
    [batch] = Data(f"{path}{query}", inputs(tokenizer, names=names))
    expected = alone(tokenizer, *(row[name] for name in columns))
    assert batch.feeds["input_ids"][0, : len(expected)].tolist() == expected
    assert batch.feeds["token_type_ids"][0].max() == 1
    assert batch.labels is not None
    assert (batch.labels.dtype, batch.labels.tolist()) == (np.float32, [2.5, 1.0])


def test_labels_of_words_are_those_of_their_first_tokens(tmp_path: Path, tokenizer: Path) -> None:
    rows = [(["cat", "xyz", "mat"], [1, 2, 3]), (["ab"], [4])]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"tokens": words, "ner_tags": tags}) + "\n" for words, tags in rows))
    [batch] = Data(str(path), inputs(tokenizer))
    # [CLS] cat x ##y ##z mat [SEP] [PAD]; [CLS] a ##b [SEP]
    assert batch.labels is not None
    assert batch.labels.tolist() == [[-100, 1, 2, -100, -100, 3, -100, -100], [-100, 4, *[-100] * 6]]
    path.write_text(json.dumps({"tokens": ["cat"], "ner_tags": [1, 2]}))
    with pytest.raises(DataError, match=r"a\.jsonl row 0: 2 labels; one for each of 1 words"):
        list(Data(str(path), inputs(tokenizer)))


def test_a_language_model_has_its_own_tokens_for_labels(tmp_path: Path, tokenizer: Path) -> None:
    [batch] = Data(lines(tmp_path / "a.txt", LINES), inputs(tokenizer, task="language-model"))
    assert batch.labels is not None
    mask = batch.feeds["attention_mask"] == 1
    assert (batch.labels[mask] == batch.feeds["input_ids"][mask]).all()
    assert (batch.labels[~mask] == -100).all()


def test_a_split_is_a_file_of_the_folder(tmp_path: Path, tokenizer: Path) -> None:
    lines(tmp_path / "test.txt", ["the cat"])
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
    spec = lines(tmp_path / "a.txt", LINES)
    with pytest.raises(InvalidOption, match=r"is not known\n  hint: add \?preprocessing=hf:NAME_OR_FOLDER"):
        list(Data(spec, [TensorInfo("input_ids", "int64", ("batch", "length"))]))
    with pytest.raises(DataError, match=r"tokenizer no/such: cannot be loaded .*\n  hint: give a folder"):
        list(Data(spec, inputs(Path("no/such"))))


def test_samples_of_texts_are_halves_by_content_and_balanced(tmp_path: Path, tokenizer: Path) -> None:
    rows = [
        {
            "text": " ".join("cat mat dog far".split()[index // 2 // 4**place % 4] for place in range(3)),
            "label": index % 3,
        }
        for index in range(60)
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def ids(query: str) -> list[str]:
        return [
            str(row)
            for batch in Data(f"{path}{query}", inputs(tokenizer), batch_size=1)
            for row in batch.feeds["input_ids"]
        ]

    first, second = ids("?part=calibration"), ids("?part=evaluation")
    assert not set(first) & set(second)
    assert len(first) + len(second) == 60
    drawn = [int(one.labels[0]) for one in Data(f"{path}?samples=9", inputs(tokenizer), batch_size=1)]  # type: ignore[index]
    assert sorted(drawn) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
