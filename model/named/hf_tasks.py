"""Choose the class of a transformers model and its task, from its configuration or as it is asked for."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidOption, ModelError
from ..source import Source


@dataclass(frozen=True)
class Head:
    """A kind of model in transformers.

    Attributes:
        auto: The class that finds it for a configuration.
        task: As `model.preprocessing` names it; empty where it has no name there.
        endings: How the names of its classes end.
        classifies: Whether its number of classes is a choice (`num_labels`).
    """

    auto: str
    task: str
    endings: tuple[str, ...]
    classifies: bool = False


HEADS: dict[str, Head] = {
    "text-classification": Head(
        "AutoModelForSequenceClassification", "text-classification", ("ForSequenceClassification",), True),
    "token-classification": Head(
        "AutoModelForTokenClassification", "token-classification", ("ForTokenClassification",), True),
    "question-answering": Head("AutoModelForQuestionAnswering", "", ("ForQuestionAnswering",)),
    "masked-language-model": Head("AutoModelForMaskedLM", "", ("ForMaskedLM", "ForPreTraining")),
    "language-model": Head("AutoModelForCausalLM", "language-model", ("ForCausalLM", "LMHeadModel")),
    "image-classification": Head(
        "AutoModelForImageClassification", "image-classification",
        ("ForImageClassification", "ForImageClassificationWithTeacher"), True),
    "semantic-segmentation": Head(
        "AutoModelForSemanticSegmentation", "semantic-segmentation", ("ForSemanticSegmentation",), True),
    "object-detection": Head(
        "AutoModelForObjectDetection", "object-detection", ("ForObjectDetection",), True),
    "instance-segmentation": Head(
        "AutoModelForUniversalSegmentation", "",
        ("ForUniversalSegmentation", "ForInstanceSegmentation"), True),
    "depth-estimation": Head("AutoModelForDepthEstimation", "", ("ForDepthEstimation",)),
    "speech-recognition": Head("AutoModelForCTC", "speech-recognition", ("ForCTC",)),
    "audio-classification": Head(
        "AutoModelForAudioClassification", "audio-classification", ("ForAudioClassification",), True),
    "embedding": Head("AutoModel", "embedding", ("Model", "ModelWithProjection", "EncoderModel", "Encoder")),
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """What a configuration becomes.

    Attributes:
        head: The kind of model.
        name: Its key in `HEADS`.
        model: The class; takes a configuration.
        encoder: Whether its encoder alone is taken: the model generates with a decoder.
    """

    head: Head
    name: str
    model: Any
    encoder: bool = False


def choose(source: Source, config: Any) -> Choice:
    """Return class and task for a configuration."""
    import transformers

    asked = source.options.task
    named = next(iter(getattr(config, "architectures", None) or ()), "")
    if asked:
        return _asked(source, config, asked)
    model = getattr(transformers, named, None)
    if named and model is None:
        raise ModelError(
            f"{source.spec}: transformers {transformers.__version__} has no class {named}; code of a hub "
            "is never run",
            hint="write a function that returns the module: file.py:function",
        )
    name = _by_ending(named) if model is not None else "embedding"
    if name == "text-classification" and _is_audio(model):
        name = "audio-classification"
    if name is None or (_decodes(config, model) and name != "text-classification"):
        what = "generates with a decoder" if _decodes(config, model) else f"is a {named}"
        raise ModelError(
            f"{source.spec}: {what}; one of these is required: {', '.join(HEADS)}",
            hint="give ?task=embedding for its encoder alone, or write a function: file.py:function",
        )
    return Choice(HEADS[name], name, model or _of_auto(source, config, name))


def _asked(source: Source, config: Any, asked: str) -> Choice:
    if asked not in HEADS:
        near = difflib.get_close_matches(asked, HEADS, n=1)
        raise InvalidOption(
            f"model {source.spec}: task {asked!r} is none of {', '.join(HEADS)}",
            hint=f"did you mean {near[0]!r}?" if near else "",
        )
    model = _of_auto(source, config, asked)
    encoder = asked == "embedding" and bool(getattr(config, "is_encoder_decoder", False))
    return Choice(HEADS[asked], asked, model, encoder)


def _of_auto(source: Source, config: Any, name: str) -> Any:
    """The class that an Auto class would make for a configuration."""
    import transformers

    mapping = getattr(transformers, HEADS[name].auto)._model_mapping
    try:
        found = mapping[type(config)]
    except KeyError:
        raise InvalidOption(
            f"model {source.spec}: transformers has no {HEADS[name].auto} for {type(config).__name__}",
            hint="choose another task",
        ) from None
    return found[0] if isinstance(found, tuple | list) else found


def _by_ending(name: str) -> str | None:
    """The longest ending wins: `ForCausalLM` before `Model`."""
    endings = sorted(
        ((e, key) for key, head in HEADS.items() for e in head.endings), key=lambda p: -len(p[0])
    )
    return next((key for ending, key in endings if name.endswith(ending)), None)


def _is_audio(model: Any) -> bool:
    return getattr(model, "main_input_name", "") in ("input_values", "input_features")


def _decodes(config: Any, model: Any) -> bool:
    """Whether a model takes tokens of a decoder beside its inputs."""
    import inspect

    parameters = inspect.signature(model.forward).parameters if model is not None else {}
    return bool(getattr(config, "is_encoder_decoder", False)) and "decoder_input_ids" in parameters
