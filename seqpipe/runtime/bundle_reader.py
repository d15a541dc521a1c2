"""What a bundle states of its reader in, that reader out, its options checked as those of a YAML are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqpipe.config.plugins import Plugins
from seqpipe.config.signature import options_model, validate, values
from seqpipe.errors import BundleError, UsageError


def reader_from(stated: Mapping[str, Any], plugins: Plugins) -> Any:
    """The installed reader that is called `use`, with these `options`.

    Raises:
        PluginError: if it is not installed.
        BundleError: names every option that it does not have, or that has another type.
    """
    cls = plugins.find("reader", stated["use"]).load()
    options, mistakes = validate(options_model(cls), stated["options"])
    if options is None:
        messages = "; ".join(f"{'.'.join(map(str, mistake.where))}: {mistake.message}" for mistake in mistakes)
        raise BundleError(f"bundle.json: reader.options: {messages}; export the bundle again")
    try:
        return cls(**values(options))
    except UsageError as error:
        raise BundleError(f"bundle.json: reader.options: {error}") from error
