"""Tokenizers trained on the training texts, or taken over from the runs that `init` names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from seqpipe.answers.multi_head import tokenizer_file
from seqpipe.answers.text import target_text, text_of
from seqpipe.config.component import build_component, by_source, describe
from seqpipe.config.contract import has_member, is_language_model_head, is_self_supervised, special_tokens
from seqpipe.config.head_answers import answer_kind
from seqpipe.config.init_from import counterpart
from seqpipe.config.loader import Component, Config
from seqpipe.errors import ConfigError, DataError, PluginError, UsageError
from seqpipe.features.document import Record, place_of
from seqpipe.features.encoding import CURE, cannot_split, is_panic
from seqpipe.features.sources import tokenizer_file_of, tokenizers_of
from seqpipe.features.splitting import splits_words
from seqpipe.features.vocabulary import SPECIALS
from seqpipe.training.artifacts import Artifacts

Texts = Iterator[tuple[Record, str | list[str]]]  # texts, or their words, each with its record


def fit_tokenizer(component: Component, texts: Callable[[], Texts]) -> Tokenizer:
    """Train a component's tokenizer on texts, which are iterated anew at each call.

    Raises:
        PluginError: The special tokens are not where every vocabulary has them.
        DataError: The tokenizers library panics at a text.
    """
    if folder := component.common_keys.get("init"):
        return _tokenizer_of_run(component, folder)
    trainer = build_component(component)
    try:
        tokenizer = trainer.train(text for _, text in texts())
    except BaseException as error:
        if not is_panic(error):
            raise
        refuse_panicking_text(trainer, [*texts()])
        message = f"{component.key}: {describe(component)} cannot be trained on these texts: {error}; {CURE}"
        raise DataError(message) from error
    where = f"{component.key}: {describe(component)}"
    if not isinstance(tokenizer, Tokenizer):
        raise PluginError(f"{where}: `train` must return a tokenizers.Tokenizer, not {type(tokenizer).__name__}")
    if [tokenizer.token_to_id(token) for token in SPECIALS] != list(range(len(SPECIALS))):
        raise PluginError(
            f"{where}: the first ids must be those of {' '.join(SPECIALS)}; train it with them as special tokens"
        )
    return tokenizer


def refuse_panicking_text(trainer: Any, texts: list[tuple[Record, Any]]) -> None:
    """DataError for the text at which the library panics, located by halving, if one text alone suffices."""

    def panic_of(part: list[tuple[Record, Any]]) -> BaseException | None:
        try:
            trainer.train(text for _, text in part)
        except Exception:  # plugin code: so few texts may be refused in any way, and only panics are looked for
            return None
        except BaseException as error:
            if not is_panic(error):
                raise
            return error
        return None

    while len(texts) > 1:
        half = texts[: len(texts) // 2]
        texts = half if panic_of(half) else texts[len(half) :]
    if error := panic_of(texts):
        record, text = texts[0]
        raise cannot_split(text, error, place_of(record)) from error


def fit_target_tokenizer(head: Component, source: Tokenizer | None, records: Sequence[Record], field: str) -> Tokenizer:
    """The tokenizer that a head writes with: that of the only source, or one trained on its target texts."""
    choice: Any = head.common_keys.get("target_tokenizer")
    if is_language_model_head(head) or (is_self_supervised(head) and choice is None):
        choice = "same"
    if choice is None:
        raise UsageError(f"{head.key}: {head.use!r} answers with text; add `target_tokenizer: same`, or {{use: NAME}}")
    if choice == "same":
        if source is None:
            message = (
                "target_tokenizer: same means the only tokenizer, and there are several, or none; write {use: NAME}"
            )
            raise ConfigError([head.problem(message)])
        return source
    return fit_tokenizer(choice, lambda: ((record, target_text(record, field)) for record in records))


def shared_targets(heads: Sequence[Component]) -> list[str]:
    """The fields of targets that are written with the tokenizer of their source, which is trained on both then."""
    writing = [head for head in heads if head.common_keys.get("target_tokenizer") == "same"]
    return [head.common_keys.get("target") or "target" for head in writing if answer_kind(head).has_target_text]


def add_special_tokens(tokenizer: Tokenizer, heads: Sequence[Component]) -> Tokenizer:
    """Add the tokens that heads need, behind all others, or where a checkpoint has them.

    In a text they stand for themselves. Where tokens hold the blank before them, one takes that blank with it.
    """
    blank = splits_words(tokenizer)
    for token in dict.fromkeys(token for head in heads for token in special_tokens(head)):
        tokenizer.add_special_tokens([AddedToken(token, lstrip=blank, normalized=False, special=True)])
    return tokenizer


def split_or_whole(record: Record, fields: Sequence[str], field: str) -> str | list[str]:
    """The words of a record where its text is given so, else the text of a field."""
    if tuple(fields) == ("text",) and record.get("words") is not None:
        return list(record["words"])
    return text_of(record, field)


def dev_messages(config: Config, artifacts: Artifacts, dev: Sequence[Record]) -> Iterator[str]:
    """What the tokenizers of the inputs say about themselves on the dev records."""
    fitted = tokenizers_of(artifacts.featurizer)
    for name, source in by_source(config.inputs).items():
        component = source.tokenizer
        if component is None or component.common_keys.get("init") or not has_member(component.cls, "dev_messages"):
            continue
        fields = component.common_keys.get("field") or "text"
        fields = [fields] if isinstance(fields, str) else fields
        texts = [split_or_whole(record, fields, field) for record in dev for field in fields]
        yield from build_component(component).dev_messages(fitted[name], texts)


def _tokenizer_of_run(component: Component, folder: Path) -> Tokenizer:
    """The tokenizer, or a head's target tokenizer, of the run that a component starts from."""
    there = counterpart(component, folder)
    if component.key.endswith(".target_tokenizer"):
        file = tokenizer_file(Artifacts.load(folder).tasks[there.number].name)
    else:
        file = tokenizer_file_of(there.source)
    return Tokenizer.from_file(str(folder / file))
