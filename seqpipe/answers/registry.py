"""What a bundle or a run states of its answers in, the answer kind out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from seqpipe.answers.base import Kind
from seqpipe.answers.classification import Label, Labels
from seqpipe.answers.embedding import Vector
from seqpipe.answers.extractive_span import Span
from seqpipe.answers.fill_mask import Filled
from seqpipe.answers.generation import Continuation
from seqpipe.answers.pointers import pointers_from
from seqpipe.answers.regression import Score
from seqpipe.answers.span_infilling import Hidden
from seqpipe.answers.tagging import Spans, Tags
from seqpipe.answers.text import Text
from seqpipe.errors import BundleError
from seqpipe.features.extended_vocabulary import ExtendedVocabulary

_LABELLED: Mapping[str, type[Tags | Label | Labels | Vector]] = {
    kind.kind: kind for kind in (Tags, Spans, Label, Labels, Vector)
}


def kind_from(manifest: Mapping[str, Any], target_tokenizer: Tokenizer | None) -> Kind:
    """The answer kind that a bundle or a run describes."""
    name, target = manifest.get("kind"), manifest.get("target")
    if name == "label":
        return Label(manifest["labels"], target, manifest.get("out_of_scope"))
    if name == "vector" and manifest.get("self_taught") is True:
        return Vector((), target, True)
    if isinstance(name, str) and name in _LABELLED:
        return _LABELLED[name](manifest["labels"], target)
    if name == "score":
        return Score(target, manifest.get("self_taught") is True)
    if name == "span":
        return Span(target)
    if name == "pointers":
        return pointers_from(manifest)
    if name == "text" and target_tokenizer is not None:
        if "fills" in manifest:
            fills = manifest["fills"]
            return Filled(target_tokenizer, token=fills["token"], share=fills["share"], fields=fills["fields"])
        if continues := manifest.get("continues"):
            return Continuation(target_tokenizer, bool(continues["begins"]), int(continues["context"]))
        if hides := manifest.get("hides"):
            return Hidden(target_tokenizer, share=hides["share"], length=hides["length"], field=hides["field"])
        copies = manifest.get("copies")
        return Text(target_tokenizer, target, copies and ExtendedVocabulary(target_tokenizer, copies["same"]))
    raise BundleError(f"answer kind {name!r} is not known to this version, or lacks its tokenizer; update seqpipe")
