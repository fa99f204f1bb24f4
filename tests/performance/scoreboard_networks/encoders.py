"""Encoders with a truth to be judged by: which passage a summary belongs to, and whose antibody it is."""

from __future__ import annotations

import ast
import functools
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .base import Array, Counted, Sample, distributed, pinned, shares
from .text import tokenizer

PAIRS = 304
"""Summaries, and passages; a multiple of the groups that the scoreboard leaves out in turn."""


@functools.cache
def _documented() -> tuple[tuple[str, str], ...]:
    """The first two parts of docstrings of SciPy, scikit-learn and scikit-image: summary and passage."""
    import scipy
    import sklearn

    roots = [Path(str(package.__file__)).parent for package in (scipy, sklearn)]
    roots.append(distributed("scikit-image", "skimage"))
    found: dict[str, str] = {}
    for path in (path for root in roots for path in sorted(root.rglob("*.py")) if "tests" not in path.parts):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                parts = re.split(r"\n\s*\n", ast.get_docstring(node) or "")
                plain = [re.sub(r"\s+", " ", re.sub(r"[`*]", "", part)).strip() for part in parts[:2]]
                if len(plain) == 2 and all(re.fullmatch(r"[A-Z][\w ,.;:'()/\-]+\.", part) for part in plain):
                    summary, passage = plain
                    if 25 <= len(summary) <= 120 and 80 <= len(passage) <= 500:
                        found.setdefault(summary, passage)
    once = list({passage: (summary, passage) for summary, passage in found.items()}.values())
    once.sort()
    random.Random(0).shuffle(once)
    return tuple(once)


def passages() -> Iterator[Sample]:
    """Yield input_ids and attention_mask int64 [1, tokens]: 32 other pairs; summaries; their passages."""
    pairs, others = _documented()[:PAIRS], _documented()[PAIRS : PAIRS + 32]
    texts = [text for pair in others for text in pair]
    texts += [*(summary for summary, _ in pairs), *(passage for _, passage in pairs)]
    for text in texts:
        ids = np.array([tokenizer().encode(text).ids[:128]], np.int64)
        yield {"input_ids": ids, "attention_mask": np.ones_like(ids)}


@Counted
def passages_found(_: list[Array], found: list[Array], numbers: Array) -> Array:
    """Count the reciprocal rank of the passage that each summary belongs to, by cosine."""
    rows = np.concatenate([row.reshape(1, -1) for row in found]).astype(np.float64)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    asked, passage = rows[numbers < PAIRS], rows[numbers >= PAIRS]
    similar = asked @ passage.T
    ranks = (similar > similar.diagonal()[:, None]).sum(axis=1) + 1
    return np.stack([1 / ranks, np.ones(len(ranks))], axis=1)


SPECIES = ("alpaca", "human", "mouse", "rabbit", "rat", "rhesus")
"""AntiBERTy's classes; its first is called camel, to which alpacas belong."""
LETTERS = "ACDEFGHIKLMNPQRSTVWY"


@functools.cache
def _antibodies() -> tuple[tuple[str, int], ...]:
    """Variable genes of ANARCI's table, each with a joining gene, in amino acids; and the species."""
    table = next(
        ast.literal_eval(node.value)
        for node in ast.parse(pinned("genes").read_text()).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "all_germlines"
    )
    found = {}
    for chain in "HKL":
        for species in (one for one in SPECIES if one in table["V"][chain] and one in table["J"][chain]):
            genes, joining = (
                [gene.replace("-", "") for gene in table[part][chain][species].values()] for part in "VJ"
            )
            for number, gene in enumerate(genes):
                if len(gene) >= 85:
                    found[gene] = gene + joining[number % len(joining)], SPECIES.index(species)
    whole = sorted(one for one in found.values() if set(one[0]) <= set(LETTERS))
    random.Random(0).shuffle(whole)
    return tuple(whole)


def antibodies() -> Iterator[Sample]:
    """Yield input_ids and attention_mask int64 [1, amino acids + 2], of 64 + 512 genes."""
    for gene, _ in _antibodies()[: 64 + 512]:
        ids = np.array([[2, *(5 + LETTERS.index(letter) for letter in gene), 3]], np.int64)
        yield {"input_ids": ids, "attention_mask": np.ones_like(ids)}


@Counted
def species_told(_: list[Array], found: list[Array], numbers: Array) -> Array:
    """Count the antibodies whose species is told right."""
    truth = np.array([kind for _, kind in _antibodies()[64 : 64 + 512]])
    return shares(list(np.concatenate(found).argmax(-1) == truth[numbers]))


def antibody_weights() -> dict[str, Any]:
    """AntiBERTy's parameters."""
    import torch

    found = torch.load(pinned("antibody"), map_location="cpu", weights_only=True)
    return {key: value for key, value in found.items() if "position_ids" not in key}
