"""The feature kinds by name.

Classes are imported when they are used: `import seqpipe` lists them all and imports no NumPy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from seqpipe.features.kinds.base import FeatureKind, unknown_kind

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer

    from seqpipe.features.kinds.image import Image
    from seqpipe.features.kinds.matrix import Matrix
    from seqpipe.features.kinds.mel import Mel
    from seqpipe.features.kinds.ngrams import Ngrams
    from seqpipe.features.kinds.text import Chars, Column, Copy, Pieces, Segments, Sentences

__all__ = ["Chars", "Column", "Copy", "Image", "Matrix", "Mel", "Ngrams", "Pieces", "Segments", "Sentences"]

# Kinds of pictures and sounds, which version 4 of the bundle format has, and the medium of their values.
MEDIA = {"image": "picture", "mel": "sound"}
_OWN_FILE = {"Image": "image", "Matrix": "matrix", "Mel": "mel", "Ngrams": "ngrams"}  # the other kinds are in `text.py`


def module_of(name: str) -> str:
    """Return the module of the class of this name."""
    return f"seqpipe.features.kinds.{_OWN_FILE.get(name, 'text')}"


@cache
def feature_kinds() -> Mapping[str, type[FeatureKind]]:
    """The class of every feature kind, by the kind's name."""
    classes = [getattr(import_module(module_of(name)), name) for name in __all__]
    return {cls.kind: cls for cls in classes}


def feature_from(manifest: Mapping[str, Any], tokenizers: Mapping[str, Tokenizer] | None = None) -> FeatureKind:
    """Return the fitted feature that a bundle or run describes; `tokenizers` are the target tokenizers by file."""
    kind = manifest.get("kind")
    if not isinstance(kind, str) or kind not in feature_kinds():
        raise unknown_kind(repr(kind))
    return feature_kinds()[kind].from_manifest(manifest, tokenizers or {})


def picture_size(features: Iterable[FeatureKind]) -> tuple[int, int] | None:
    """Return the rows and columns of the pictures that one of the features reads."""
    from seqpipe.features.kinds.image import Image

    return next(((feature.height, feature.width) for feature in features if isinstance(feature, Image)), None)


def pixels(feature: FeatureKind, rows: np.ndarray) -> np.ndarray | None:
    """Return rows of a picture, or of a sound with time to the right, as a picture (H, W, 1 or 3) of bytes, else None.

    A sound's lowest band is below, its loudest place white.
    """
    from seqpipe.features.kinds.image import Image

    if not feature.is_media or not rows.size:
        return None
    if isinstance(feature, Image):
        return (255 * rows).round().astype("u1").reshape(len(rows), -1, feature.channels)
    shades = (rows - rows.min()) / max(float(rows.max() - rows.min()), 1e-6)
    return (255 * shades).astype("u1").T[::-1, :, None]


def pair_features() -> dict[str, FeatureKind]:
    """The features that every pair of texts has, by name."""
    return {kind: cls() for kind, cls in feature_kinds().items() if cls.of_pairs}
