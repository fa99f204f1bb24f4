"""Networks that look at text: lines, pages and captchas, drawn with Pillow's own font."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .base import Array, Counted, Sample, pinned, shares
from .boxes import Boxes, Corners, of_one_kind
from .photos import crops, planes
from .text import decode, edits, sentences

LINES = 64 + 160


def _drawn(text: str, size: int, generator: np.random.Generator) -> Image.Image:
    """A line of text on its own ground: an image in grey, as high as the letters and a margin."""
    font = ImageFont.load_default(size)
    left, top, right, bottom = font.getbbox(text)
    margin = int(generator.integers(2, 6))
    paper, ink = int(generator.integers(170, 256)), int(generator.integers(0, 90))
    if generator.random() < 0.25:
        paper, ink = ink, paper
    image = Image.new("L", (int(right - left) + 2 * margin, int(bottom - top) + 2 * margin), paper)
    ImageDraw.Draw(image).text((margin - left, margin - top), text, fill=ink, font=font)
    return image.rotate(float(generator.uniform(-1.5, 1.5)), fillcolor=paper)


def _noisy(image: Image.Image, generator: np.random.Generator) -> Array:
    """float32 [height, width], -1 to 1, with noise."""
    grey = np.asarray(image, np.float32) + generator.normal(0, generator.uniform(2, 30), image.size[::-1])
    return (np.clip(grey, 0, 255) / 127.5 - 1).astype(np.float32)


@functools.cache
def lines() -> list[str]:
    """Lines of up to 24 characters out of the sentences."""
    found = []
    for sentence in sentences()[:LINES]:
        words, line = sentence.split(), ""
        while words and len(line) + len(words[0]) < 24:
            line = f"{line} {words.pop(0)}".strip()
        found.append(line)
    return found


def text_lines(
    name: str, height: int, width: int, channels: int = 3, *, turned: bool = False
) -> Iterator[Sample]:
    """Yield float32 [1, channels, height, width] of one line each, every other one turned over."""
    for number, line in enumerate(lines()):
        generator = np.random.default_rng(number)
        image = _drawn(line, int(generator.integers(9, 22)), generator)
        if turned and number % 2:
            image = image.rotate(180)
        wide = min(width, max(height, round(image.width * height / image.height)))
        picture = np.zeros((1, channels, height, width), np.float32)
        picture[..., :wide] = _noisy(image.resize((wide, height), Image.Resampling.BILINEAR), generator)
        yield {name: picture}


@Counted
def upright_told(_: list[Array], found: list[Array], numbers: Array) -> Array:
    """Count the lines that are told right to be upright or upside down."""
    return shares(list(np.concatenate(found).argmax(-1) == (64 + numbers) % 2))


@Counted
def chinese_read(_: list[Array], found: list[Array], numbers: Array) -> Array:
    """As `_read_right`, in the alphabet that the model names itself."""
    import onnx

    properties = {entry.key: entry.value for entry in onnx.load(pinned("reader")).metadata_props}
    return _read_right(found, numbers, [*properties["character"].splitlines(), " "])


ENGLISH = "0123456789!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ €ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""EasyOCR's alphabet of english_g2."""


@Counted
def english_read(_: list[Array], found: list[Array], numbers: Array) -> Array:
    """As `_read_right`, in EasyOCR's alphabet."""
    return _read_right(found, numbers, ENGLISH)


def _read_right(found: list[Array], numbers: Array, alphabet: str | list[str]) -> Array:
    """Count the characters of each line less the edits against the text that was drawn."""
    pairs = [(decode(one, alphabet), lines()[64 + i]) for one, i in zip(found, numbers, strict=True)]
    return np.array([[len(line) - edits(read, line), len(line)] for read, line in pairs], float)


def _page(width: int, height: int, generator: np.random.Generator) -> tuple[Image.Image, list[Corners]]:
    """A page with lines of text in several sizes, and where each is with its ground."""
    page = Image.new("L", (width, height), int(generator.integers(100, 256)))
    places, top = list[Corners](), int(generator.integers(5, 40))
    while top < height - 40:
        text = lines()[int(generator.integers(LINES))]
        line = _drawn(text, int(generator.integers(12, 34)), generator)
        left = int(generator.integers(0, 60))
        page.paste(line, (left, top))
        places.append((left, top, min(left + line.width, width), min(top + line.height, height)))
        top += line.height + int(generator.integers(4, 50))
    return page, places


def pages(name: str, side: int, count: int) -> Iterator[Sample]:
    """Yield float32 [1, 3, side, side]: pages of text."""
    for number in range(count):
        generator = np.random.default_rng(1000 + number)
        page, _ = _page(side, side, generator)
        yield {name: np.repeat(_noisy(page, generator)[None, None], 3, axis=1)}


def lines_on_pages(side: int, count: int) -> list[Boxes]:
    """Where the lines of the evaluation's pages are."""
    made = (_page(side, side, np.random.default_rng(1000 + number))[1] for number in range(count))
    return [of_one_kind(places) for places in made][32:]


def turned_pages() -> Iterator[Sample]:
    """Yield float32 [1, 3, 224, 224]: pages in four turns, of 64 + 192."""
    for number in range(64 + 192):
        generator = np.random.default_rng(2000 + number)
        page = _page(320, 320, generator)[0].resize((224, 224), Image.Resampling.LANCZOS)
        noisy = Image.fromarray(
            ((_noisy(page.rotate(-90 * (number % 4)), generator) + 1) * 127.5).astype(np.uint8)
        )
        yield {"x": planes(noisy)}


@Counted
def turns_told(_: list[Array], found: list[Array], numbers: Array) -> Array:
    """Count the pages whose turn is told right."""
    return shares(list(np.concatenate(found).argmax(-1) == (64 + numbers) % 4))


def documents() -> Iterator[Sample]:
    """Yield float32 [1, 3, 800, 608]: documents with titles, paragraphs and figures, of 32 + 64."""
    for page, _ in _documents():
        yield {"image": planes(page)}


TEXT, TITLE, FIGURE, CAPTION = range(4)
"""Classes of CDLA, which PicoDet was trained on, in its order."""


def parts_of_documents() -> list[Boxes]:
    """Where the parts of the evaluation's documents are, and what they are."""
    found = []
    for _, places in _documents():
        corners, scores, _ = of_one_kind([place for place, _ in places])
        found.append((corners, scores, np.array([kind for _, kind in places])))
    return found[32:]


def _documents() -> Iterator[tuple[Image.Image, list[tuple[Corners, int]]]]:
    font = ImageFont.load_default
    photographs = crops(160, 96, seed=3)
    for number in range(32 + 64):
        generator = np.random.default_rng(3000 + number)
        page = Image.new("RGB", (608, 800), (int(generator.integers(225, 256)),) * 3)
        draw, places = ImageDraw.Draw(page), list[tuple[Corners, int]]()

        def write(left: int, top: int, text: str, size: int, draw: ImageDraw.ImageDraw = draw) -> Corners:
            draw.text((left, top), text, fill=0, font=font(size))
            return tuple(int(edge) for edge in draw.textbbox((left, top), text, font=font(size)))  # type: ignore[return-value]

        places.append((write(60, 40, lines()[number], 26), TITLE))
        top, figure = 100, int(generator.integers(4))
        for block in range(4):
            if block == figure:
                photograph = next(photographs)
                page.paste(photograph.resize((300, 160)), (150, top))
                places.append(((150, top, 450, top + 160), FIGURE))
                caption = write(180, top + 165, f"Figure {number}. {lines()[number + 1]}", 12)
                places.append((caption, CAPTION))
                top += 200
                continue
            places.append((write(50, top, lines()[int(generator.integers(LINES))], 17), TITLE))
            top += 28
            written = []
            for _ in range(int(generator.integers(3, 8))):
                text = " ".join(lines()[int(i)] for i in generator.integers(0, LINES, 4))
                written.append(write(50, top, text[:80], 12))
                top += 17
            low, high = np.min(written, axis=0), np.max(written, axis=0)
            places.append(((int(low[0]), int(low[1]), int(high[2]), int(high[3])), TEXT))
            top += 20
        yield page, places


def captchas() -> Iterator[Sample]:
    """Yield float32 [1, 1, 64, width]: four to six turned characters, lines and noise, 64 + 160."""
    characters = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghjkmnpqrstuvwxyz23456789"
    for number in range(64 + 160):
        generator = np.random.default_rng(4000 + number)
        count = int(generator.integers(4, 7))
        image = Image.new("L", (36 * count, 64), int(generator.integers(190, 256)))
        draw = ImageDraw.Draw(image)
        for _ in range(3):
            ends = generator.integers(0, [image.width, 64, image.width, 64]).tolist()
            draw.line(ends, fill=int(generator.integers(100, 200)))
        for place in range(count):
            mask = Image.new("L", (36, 50), 0)
            letter = characters[int(generator.integers(len(characters)))]
            ImageDraw.Draw(mask).text((6, 4), letter, fill=255, font=ImageFont.load_default(32))
            mask = mask.rotate(float(generator.uniform(-20, 20)))
            image.paste(int(generator.integers(0, 90)), (36 * place, int(generator.integers(0, 14))), mask)
        yield {"input1": _noisy(image, generator)[None, None]}


def scattered_letters() -> Iterator[Sample]:
    """Yield float32 [1, 3, 416, 416], 0 to 255: letters in front of photographs, of 32 + 64."""
    for image, _ in _with_letters():
        yield {"images": np.asarray(image, np.float32)[..., ::-1].transpose(2, 0, 1)[None].copy()}


def places_of_letters() -> list[Boxes]:
    """Where the letters of the evaluation's images are that no later one was drawn over by half and more."""
    return [of_one_kind(places) for _, places in _with_letters()][32:]


def _with_letters() -> Iterator[tuple[Image.Image, list[Corners]]]:
    for number, image in enumerate(crops(416, 32 + 64, seed=4)):
        places: list[Corners] = []
        generator = np.random.default_rng(5000 + number)
        for _ in range(int(generator.integers(3, 8))):
            size = int(generator.integers(40, 80))
            mask = Image.new("L", (size + 20, size + 20), 0)
            letter = chr(int(generator.integers(65, 91)))
            ImageDraw.Draw(mask).text((12, 4), letter, fill=255, font=ImageFont.load_default(size))
            place = tuple(int(i) for i in generator.integers(0, 416 - size - 20, 2))
            color = tuple(int(i) for i in generator.integers(0, 256, 3))
            turned = mask.rotate(float(generator.uniform(-40, 40)))
            image.paste(color, place, turned)
            left, top, right, bottom = turned.getbbox() or (0, 0, 0, 0)
            corners = (place[0] + left, place[1] + top, place[0] + right, place[1] + bottom)
            places = [one for one in places if _shared(one, corners) < 0.5] + [corners]
        yield image, places


def _shared(one: Corners, other: Corners) -> float:
    """The share of one rectangle that another covers."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0) * max(height, 0) / ((one[2] - one[0]) * (one[3] - one[1]))
