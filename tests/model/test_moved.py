"""Where a recipe was carried to another folder, its model's tokenizer is found, and named as before."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from qcompile.errors import DataError
from qcompile.model.moved import moved, path_here, path_there


def test_paths_below_the_folder_are_swapped_and_others_stay(tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "net").mkdir(parents=True)
    (tmp_path / "hereabouts").mkdir()
    before = dict(os.environ)
    with moved("/client/base", here):
        assert path_there(here / "net") == "/client/base/net"
        assert path_there(here) == "/client/base"
        assert path_there(tmp_path / "hereabouts") == str(tmp_path / "hereabouts")
        assert path_here("/client/base/net") == str(here / "net")
        assert path_here("/client/base/cache") == "/client/base/cache"  # not carried along
        assert path_here("/client/baseline/net") == "/client/baseline/net"
        assert path_here("bert") == "bert"
    with moved("/", here):
        assert path_there(here / "net") == "/net"
        assert path_here("/net") == str(here / "net")
    with moved("", here):
        assert path_there(here / "net") == str(here / "net")
    assert dict(os.environ) == before


def test_a_tokenizer_is_named_as_there_and_found_here(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="reads models of Hugging Face")
    from named_models import FOLDERS

    from qcompile.data.processors import load_processor
    from qcompile.model.preprocessing import TextPreprocessing
    from qcompile.model.preprocessing_names import find_preprocessing

    there, here = tmp_path / "there", tmp_path / "here"
    FOLDERS["bert"](there / "net")
    said = find_preprocessing(f"hf:{there}/net")
    assert isinstance(said, TextPreprocessing)
    assert said.tokenizer == f"{there}/net"
    there.rename(here)
    with pytest.raises(DataError, match="cannot be loaded"):
        load_processor("AutoTokenizer", said.tokenizer, "tokenizer")
    with moved(str(there), here):
        assert find_preprocessing(f"hf:{here}/net") == said
        assert load_processor("AutoTokenizer", said.tokenizer, "tokenizer")("the")["input_ids"]


@pytest.mark.slow
def test_a_text_model_is_exported_to_the_same_file_and_its_tokenizer_is_found(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="reads models of Hugging Face")
    pytest.importorskip("torch", reason="exports them")
    from named_models import FOLDERS

    from qcompile.compiler.export import export
    from qcompile.data.batches import Data
    from qcompile.files import digest_files
    from qcompile.model.weightless import read_weightless

    there, here = tmp_path / "there", tmp_path / "here"
    FOLDERS["bert"](there / "net")
    (there / "texts.txt").write_text("the cat sat\na dog ran\n")
    export(f"hf:{there}/net", tmp_path / "there.onnx")
    shutil.copytree(there, here)
    there.rename(tmp_path / "gone")
    with moved(str(there), here):
        export(f"hf:{here}/net", tmp_path / "here.onnx")
        assert digest_files([tmp_path / "here.onnx"]) == digest_files([tmp_path / "there.onnx"])
        inputs = read_weightless(tmp_path / "here.onnx").io.inputs
        [batch] = list(Data(str(here / "texts.txt"), inputs, batch_size=2))
        assert batch.samples == 2
