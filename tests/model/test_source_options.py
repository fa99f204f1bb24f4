"""What follows the `?` of a MODEL: written and read, strict, merged with options, kept absolute."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qcompile.errors import InvalidOption, MissingFile
from qcompile.model.source import digest_source, parse_source
from qcompile.model.source_options import SourceOptions, parse_query

OPTIONS = st.builds(
    SourceOptions,
    weights=st.one_of(st.just(""), st.just("random"), st.text(min_size=1)),
    download=st.booleans(),
    classes=st.integers(0, 10**6),
    size=st.one_of(st.just(()), st.tuples(st.integers(1, 4096), st.integers(1, 4096))),
    task=st.text(),
    seed=st.integers(0, 2**63),
)


@given(OPTIONS)
def test_what_is_written_is_read(options: SourceOptions) -> None:
    query = options.query
    assert "?" not in query[1:]
    assert (parse_query(query[1:], "timm:x") if query else SourceOptions()) == options


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidOption):
        parse_query(text, "timm:x")


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("timm:resnet18?wieghts=random", "'wieghts=random' is none of its options", "'weights'"),
        ("timm:resnet18?classes", "none of its options", "classes=VALUE"),
        ("timm:resnet18?classes=0", "classes=0; a number of 1 or more", ""),
        ("timm:resnet18?size=1x2x3", "size=1x2x3; HEIGHT", ""),
        ("timm:resnet18?download=yes", "download=yes; 0 or 1", ""),
        ("timm:resnet18?seed=-1", "seed=-1; a number", ""),
        ("timm:resnet18?seed=1&seed=1", "seed is given twice", ""),
        ("timm:", "names no model", "timm:NAME"),
        ("zoo:net?classes=3", "'classes=3' is none of its options: weights", ""),
        ("zoo:net?weights=random", "chooses its weights itself", ""),
    ],
)
def test_a_wrong_option_is_named(spec: str, message: str, hint: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse_source(spec)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_options_beside_the_spelling_join_it(tmp_path: Path) -> None:
    (tmp_path / "w.safetensors").write_bytes(b"w")
    source = parse_source("timm:resnet18?classes=3", base=tmp_path, weights="w.safetensors", download=True)
    assert source.spec == "timm:resnet18?weights=w.safetensors&download=1&classes=3"
    assert source.absolute == f"timm:resnet18?weights={tmp_path}/w.safetensors&download=1&classes=3"
    assert parse_source(source.absolute).options == source.options
    with pytest.raises(InvalidOption, match="says weights=random"):
        parse_source("timm:resnet18?weights=random", base=tmp_path, weights="w.safetensors")
    with pytest.raises(MissingFile, match=r"none\.pth"):
        parse_source("timm:resnet18", base=tmp_path, weights="none.pth")
    (tmp_path / "m.onnx").write_bytes(b"")
    with pytest.raises(InvalidOption, match=r"`weights`: model m\.onnx holds its weights itself"):
        parse_source("m.onnx", base=tmp_path, weights="w.safetensors")
    (tmp_path / "net.py").write_text("")
    with pytest.raises(InvalidOption, match=r"`download`: net\.py:build downloads nothing"):
        parse_source("net.py:build", base=tmp_path, download=True)


def test_a_folder_is_kept_absolute_and_a_name_is_kept(tmp_path: Path) -> None:
    (tmp_path / "bert").mkdir()
    assert parse_source("hf:bert", base=tmp_path).absolute == f"hf:{tmp_path}/bert"
    assert parse_source("hf:org/bert?seed=2", base=tmp_path).absolute == "hf:org/bert?seed=2"
    assert parse_source("timm:bert", base=tmp_path).absolute == "timm:bert"
    with pytest.raises(MissingFile, match="no such folder"):
        parse_source("hf:./brt", base=tmp_path)


def test_the_digest_follows_weights_options_and_files(tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (tmp_path / "w.safetensors").write_bytes(b"w")

    def digest(spec: str, weights: str = "", *, download: bool = False) -> str:
        return digest_source(parse_source(spec, base=tmp_path, weights=weights, download=download))

    first = digest("hf:bert")
    assert digest("hf:bert", download=True) == first, "where it comes from is no part of what it is"
    (folder / "config.json").write_text('{"a": 1}')
    assert digest("hf:bert") != first
    with_file = digest("timm:resnet18", "w.safetensors")
    (tmp_path / "copy.safetensors").write_bytes(b"w")
    (tmp_path / "w.safetensors").write_bytes(b"v")
    others = {digest("timm:resnet18", "w.safetensors"), digest("timm:resnet18"), digest("timm:resnet34"),
              digest("timm:resnet18?weights=random"), digest("timm:resnet18?weights=random&seed=1"),
              digest("torchvision:resnet18")}  # fmt: skip
    assert len(others) == 6
    assert with_file not in others
