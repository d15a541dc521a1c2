"""What tokenizers share: options in, the normalizer out through which tokens are looked up; a file for each `use`."""

from __future__ import annotations

from tokenizers import Regex, normalizers
from tokenizers.normalizers import Normalizer


def folding(lowercase: bool, fold_digits: bool) -> Normalizer:
    """Lower case, digits as 0, or neither. One code point stays one: no two tokens share a place in the text."""
    steps: list[Normalizer] = []
    if lowercase:
        steps += [normalizers.Replace("\u0130", "i"), normalizers.Lowercase()]  # U+0130 alone would become two
    if fold_digits:
        steps.append(normalizers.Replace(Regex(r"\d"), "0"))
    return normalizers.Sequence(steps)
