"""Convert texts and recordings to model inputs with a tokenizer or feature extractor, batch by batch.

docs/data.md describes padding and resampling.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..core.figures import counted
from ..core.memory import require_address_space
from ..core.progress import quiet
from ..errors import DataError, translate_errors
from ..model.graph.source_paths import path_here
from ..model.sources.preprocessing import AudioPreprocessing, TextPreprocessing
from ..spec.tensors import TensorInfo
from .readers import Batch, Reader, Sample, joined, require_package
from .spelling import Spelling, parse_whole
from .table import IGNORED_LABEL, Table, preprocessing_for

_NAMES = "hf:NAME_OR_FOLDER (or FILE.json)"
_TEXTS_PER_CALL = 1024
"""Texts per tokenizer call when their lengths are computed."""
_SCIPY_BYTES = 512 << 20
_RATES_HZ = (100, 768_000)
"""Accepted sample rates of recordings; the resampling filter of other rates would need gigabytes."""
_FRAMES_AT_ONCE = 1 << 14
_LARGEST_FACTOR = 50_000


def load_processor(kind: str, name: str, what: str) -> Any:
    """Return a tokenizer or feature extractor from a folder or the local cache, without running its code."""
    require_package("transformers", "transformers", f"loads a {what}")
    import transformers

    name = path_here(name)
    hint = "" if Path(name).is_dir() else f"give a folder with the {what}'s files"
    with translate_errors(f"{what} {name}: cannot be loaded", DataError, hint=hint), quiet():
        return getattr(transformers, kind).from_pretrained(
            name, local_files_only=True, trust_remote_code=False
        )


def _feeds_of(
    arrays: Mapping[str, Any], names: Sequence[str], dtypes: Mapping[str, Any], processor: str
) -> dict[str, NDArray[Any]]:
    """Return a processor's arrays by input name, cast to `dtypes`; `processor` names it in messages."""
    for name in names:
        if name not in arrays:
            raise DataError(
                f"{processor}: returns {', '.join(arrays)}, not input {name!r}",
                hint="give the samples as arrays (.npz) or by a function",
                tensor=name,
            )
    return {name: np.asarray(arrays[name], dtypes.get(name)) for name in names}


class TextReader(Reader):
    """Tokenizes the texts, or pairs of texts, of a table batch by batch."""

    threads = 1  # the tokenizer itself is multithreaded

    def __init__(self, table: Table, inputs: Sequence[TensorInfo], spelling: Spelling) -> None:
        preprocessing = preprocessing_for(inputs, spelling, TextPreprocessing, what="texts", names=_NAMES)
        query, bucket = spelling.query, spelling.query.get("bucket", "false")
        in_words = bucket in ("true", "false")
        multiple = query.get("multiple", str(preprocessing.multiple)) if in_words else bucket
        length = query.get("length", str(preprocessing.max_length))
        self.preprocessing = replace(
            preprocessing,
            max_length=parse_whole(length, "length", spelling.spec, least=1),
            multiple=parse_whole(multiple, "multiple" if in_words else "bucket", spelling.spec, least=1),
        )
        self._table, self._in_buckets = table, bucket != "false"
        self.tokenizer = load_processor("AutoTokenizer", preprocessing.tokenizer, "tokenizer")
        if self.tokenizer.pad_token is None:  # padding is masked, so any token will do
            self.tokenizer.pad_token = self.tokenizer.eos_token or self.tokenizer.unk_token
        self._dtypes = {tensor.name: tensor.dtype for tensor in inputs}
        shapes = [tensor.shape for tensor in inputs if tensor.name in preprocessing.inputs]
        fixed = [shape[1] for shape in shapes if len(shape) == 2 and isinstance(shape[1], int)]
        self._fixed = min(fixed, default=None)
        self._longest = self.preprocessing.max_length if self._fixed is None else self._fixed
        self._lengths: dict[int, int] = {}
        self._labels, self.notes = table.labels(preprocessing.classes)

    def text(self, row: int) -> tuple[Any, ...]:
        """Return the text of a row, or both of a pair: strings, or lists of words."""
        texts = tuple(column[row] for column in self._table.texts)
        for text in texts:
            words = isinstance(text, list) and text and all(isinstance(word, str) for word in text)
            if not isinstance(text, str) and not words:
                raise DataError(
                    f"{self._table.where(row)}: {str(text)[:40]!r}; a text or a list of words is required",
                    sample=row,
                )
        return texts

    def read(self, index: int) -> Sample:
        label = None if self._labels is None else self._labels[index]
        text, where = self.text(index), self._table.where(index)
        if isinstance(label, list) and len(label) != len(text[0]):
            count, words = counted(len(label), "label"), counted(len(text[0]), "word")
            raise DataError(f"{where}: {count}; one for each of {words} is required")
        return Sample({"text": text}, label, where)

    def join(self, samples: Sequence[Sample]) -> Batch:
        arrays, words = self._tokenize([sample.feeds["text"] for sample in samples])
        labels = None
        if isinstance(samples[0].label, list):
            # The first token of each word gets its label; other tokens are ignored.
            labels = np.full((len(words), len(words[0])), IGNORED_LABEL, np.int64)
            for row, (sample, word_of) in enumerate(zip(samples, words, strict=True)):
                for column, word in enumerate(word_of):
                    if word is not None and word != (word_of[column - 1] if column else None):
                        labels[row, column] = sample.label[word]
        elif samples[0].label is None and self.preprocessing.task == "language-model":
            labels = np.where(arrays["attention_mask"] == 1, arrays["input_ids"], IGNORED_LABEL)
        if "position_ids" in self.preprocessing.inputs:
            arrays["position_ids"] = np.maximum(np.cumsum(arrays["attention_mask"], 1) - 1, 0)
        names, processor = self.preprocessing.inputs, f"tokenizer {self.preprocessing.tokenizer}"
        feeds = _feeds_of(arrays, names, dict.fromkeys(names, "int64") | self._dtypes, processor)
        return joined(feeds, samples, labels)

    def arrange(self, order: list[int], batch_size: int, *, fixed: bool) -> list[list[int]]:
        if self._in_buckets:
            unknown = [index for index in order if index not in self._lengths]
            for start in range(0, len(unknown), _TEXTS_PER_CALL):
                part = unknown[start : start + _TEXTS_PER_CALL]
                encoded = self._encode([self.text(index) for index in part])["input_ids"]
                self._lengths.update(zip(part, (self._padded(len(ids)) for ids in encoded), strict=True))
            order = sorted(order, key=self._lengths.__getitem__)  # stable for texts of equal length
        return super().arrange(order, batch_size, fixed=fixed)

    def notes_of(self, groups: Sequence[Sequence[int]]) -> list[str]:
        if not self._in_buckets:
            return []
        counts = sorted(Counter(max(self._lengths[index] for index in group) for group in groups).items())
        return ["padded lengths (batches): " + ", ".join(f"{length} ({count})" for length, count in counts)]

    def _tokenize(
        self, texts: Sequence[Sequence[Any]]
    ) -> tuple[dict[str, NDArray[np.int64]], list[list[int | None]]]:
        """Return the tokenizer's arrays [n, length] by name, and each token's word index (texts in words)."""
        encoded, in_words = self._encode(texts), isinstance(texts[0][0], list)
        if in_words and not self.tokenizer.is_fast:
            raise DataError(
                f"tokenizer {self.preprocessing.tokenizer}: slow tokenizers have no word_ids",
                hint="save the fast tokenizer (tokenizer.json) beside the model",
            )
        length = self._padded(max(len(ids) for ids in encoded["input_ids"]))
        with quiet():  # transformers recommends __call__ instead
            padded = self.tokenizer.pad(
                dict(encoded), padding="max_length", max_length=length, return_tensors="np"
            )
        words, is_left = [], self.tokenizer.padding_side == "left"
        for row in range(len(texts)) if in_words else ():
            word_ids = encoded.word_ids(row)
            padding = [None] * (length - len(word_ids))
            words.append([*padding, *word_ids] if is_left else [*word_ids, *padding])
        return {name: np.asarray(array, np.int64) for name, array in padded.items()}, words

    def _encode(self, texts: Sequence[Sequence[Any]]) -> Any:
        firsts = [pair[0] for pair in texts]
        with quiet():
            return self.tokenizer(
                firsts,
                [pair[1] for pair in texts] if len(texts[0]) == 2 else None,
                truncation=True,
                max_length=min(self._longest, self.preprocessing.max_length),
                return_attention_mask=True,
                return_token_type_ids="token_type_ids" in self.preprocessing.inputs,
                is_split_into_words=isinstance(firsts[0], list),
            )

    def _padded(self, length: int) -> int:
        if self._fixed is not None or self.preprocessing.padding == "max_length":
            return self._longest
        multiple = self.preprocessing.multiple
        return min(-(-max(length, 1) // multiple) * multiple, max(self._longest, length))


class AudioReader(Reader):
    """Decodes the recordings of a table, and converts their waveforms to model inputs batch by batch."""

    def __init__(self, table: Table, inputs: Sequence[TensorInfo], spelling: Spelling) -> None:
        self._table, what = table, "recordings"
        self.preprocessing = preprocessing_for(inputs, spelling, AudioPreprocessing, what=what, names=_NAMES)
        self._inputs = {tensor.name: tensor for tensor in inputs if tensor.name in self.preprocessing.inputs}
        name, self._extractor = self.preprocessing.extractor, None
        if name:
            self._extractor = load_processor("AutoFeatureExtractor", name, "feature extractor")
        is_speech = self.preprocessing.task == "speech-recognition"
        self._labels, self.notes = table.labels(self.preprocessing.classes, texts=is_speech)

    def read(self, index: int) -> Sample:
        file, where = self._table.file(index)
        waveform = decode_audio(file, self.preprocessing.rate_hz, self.preprocessing.max_seconds, where)
        return Sample({"waveform": waveform}, self._labels[index] if self._labels else None, where)

    def join(self, samples: Sequence[Sample]) -> Batch:
        waveforms = [sample.feeds["waveform"] for sample in samples]
        arrays = self._waveforms(waveforms) if self._extractor is None else self._features(waveforms)
        dtypes = {name: tensor.dtype for name, tensor in self._inputs.items()}
        processor = f"feature extractor {self.preprocessing.extractor or 'none'}"
        return joined(_feeds_of(arrays, self.preprocessing.inputs, dtypes, processor), samples)

    def _waveforms(self, waveforms: Sequence[NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        name = next(name for name in self.preprocessing.inputs if name != "attention_mask")
        shape = self._inputs[name].shape if name in self._inputs else ()
        extent = shape[-1] if shape and isinstance(shape[-1], int) else max(map(len, waveforms))
        batch = np.zeros((len(waveforms), extent), np.float32)
        mask = np.zeros((len(waveforms), extent), np.int64)
        for row, waveform in enumerate(waveforms):
            cut = waveform[:extent]
            if self.preprocessing.normalize:  # as Wav2Vec2's feature extractor does
                cut = (cut - cut.mean()) / np.sqrt(cut.var() + 1e-7)
            batch[row, : len(cut)], mask[row, : len(cut)] = cut, 1
        return {name: batch[:, None] if len(shape) == 3 else batch, "attention_mask": mask}

    def _features(self, waveforms: Sequence[NDArray[np.float32]]) -> dict[str, NDArray[Any]]:
        assert self._extractor is not None
        parameters = inspect.signature(self._extractor.__call__).parameters
        options: dict[str, Any] = {"sampling_rate": self.preprocessing.rate_hz, "return_tensors": "np"}
        # Some extractors pad to a fixed length. Others do not pad by default, but a batch requires it.
        if "padding" in parameters and not parameters["padding"].default:
            options["padding"] = True
        if "return_attention_mask" in parameters and "attention_mask" in self.preprocessing.inputs:
            options["return_attention_mask"] = True
        with (
            translate_errors(f"feature extractor {self.preprocessing.extractor}: failed", DataError),
            quiet(),
        ):
            return dict(self._extractor(list(waveforms), **options))


def decode_audio(
    source: Path | IO[bytes], rate_hz: int, max_seconds: float, where: str
) -> NDArray[np.float32]:
    """Return the samples of a recording in [-1, 1], resampled and cut to `max_seconds`."""
    require_package("soundfile", "soundfile", "reads recordings")
    import soundfile

    parts, hint = [np.zeros(0, np.float32)], "remove or replace the file"
    with (
        translate_errors(f"{where}: cannot be decoded as a recording", DataError, hint=hint, file=where),
        soundfile.SoundFile(source) as file,
    ):
        stored_hz, (least, most) = file.samplerate, _RATES_HZ
        if not least <= stored_hz <= most:
            raise ValueError(f"it has {stored_hz} samples per second; {least} to {most} are required")
        frames = math.ceil(max_seconds * stored_hz)
        while frames > 0:  # the header may announce more frames than the file holds
            part = file.read(min(frames, _FRAMES_AT_ONCE), dtype="float32", always_2d=True)
            if not len(part):
                break
            parts.append(part.mean(1, dtype=np.float32))
            frames -= len(part)
    samples = np.concatenate(parts)
    if not len(samples):
        raise DataError(f"{where}: holds no samples", hint=hint, file=where)
    if stored_hz != rate_hz:
        require_package("scipy", "scipy", "resamples recordings")
        require_address_space(_SCIPY_BYTES, "load scipy, which resamples recordings")
        from scipy.signal import resample_poly

        ratio = resampling_ratio(stored_hz, rate_hz)
        samples = np.asarray(resample_poly(samples, ratio.numerator, ratio.denominator), np.float32)
    return samples[: round(max_seconds * rate_hz)]


def resampling_ratio(stored_hz: int, rate_hz: int) -> Fraction:
    """Return `rate_hz / stored_hz`, rounded to terms of at most 50,000 to limit the length of the filter."""
    if stored_hz > rate_hz:
        return Fraction(rate_hz, stored_hz).limit_denominator(_LARGEST_FACTOR)
    return 1 / Fraction(stored_hz, rate_hz).limit_denominator(_LARGEST_FACTOR)
