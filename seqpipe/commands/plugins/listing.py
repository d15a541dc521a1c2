"""List the installed components, and show the options of one."""

from __future__ import annotations

from collections import Counter

from seqpipe.config.plugins import KINDS, Offer, Plugins
from seqpipe.config.signature import option_rows
from seqpipe.console import text_table
from seqpipe.errors import PluginError, did_you_mean


def list_components(plugins: Plugins | None = None) -> str:
    """Return every component with its distribution, then every broken plugin with its reason."""
    plugins = plugins or Plugins()
    rows = [(offer.kind, offer.name, f"{offer.distribution} {offer.version}") for offer in plugins.offers]
    lines = text_table([("kind", "use", "from"), *rows])
    counts = Counter((offer.kind, offer.name) for offer in plugins.offers)
    ambiguous = {name for (_, name), count in counts.items() if count > 1}
    lines += [f"\n{name!r} is offered more than once: write `use: distribution/{name}`" for name in sorted(ambiguous)]
    lines += [f"\nnote: {n.distribution} {n.version}: {n.text}" for n in plugins.notes]
    lines += [f"\n{message}" for message in plugins.left_out]
    lines += [f"\nbroken: {b.distribution} {b.version} ({b.entry_point}): {b.reason}" for b in plugins.broken]
    return "\n".join([*lines, "\nnext: seqpipe plugins show NAME"])


def show_component(name: str, plugins: Plugins | None = None) -> str:
    """Return the options of every component of that name: type, default, meaning."""
    plugins = plugins or Plugins()
    kind, _, use = name.partition("/") if name.partition("/")[0] in KINDS else ("", "", name)
    offers = [o for o in plugins.offers if use in (o.name, f"{o.distribution}/{o.name}") and kind in ("", o.kind)]
    if not offers:
        names = {offer.name for offer in plugins.offers}
        raise PluginError(
            f"no component named {name!r}{did_you_mean(name, names)} (there is: {', '.join(sorted(names))})"
        )
    return "\n\n".join(map(_show_offer, offers))


def _show_offer(offer: Offer) -> str:
    component = offer.load()
    summary = (component.__doc__ or "").strip().split("\n\n")[0]
    rows = [("option", "type", "default", ""), *option_rows(component)]
    head = f"{offer.kind} {offer.name} ({offer.distribution} {offer.version})\n{summary}\n"
    return "\n".join([head, *text_table(rows)])
