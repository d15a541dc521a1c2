"""Installed plugins in, what a person wants to read about them out."""

from __future__ import annotations

from seqpipe.config.plugins import KINDS, Offer, Plugins
from seqpipe.config.signature import describe
from seqpipe.errors import PluginError, nearest


def list_components(plugins: Plugins | None = None) -> str:
    """Every component with its distribution, then every broken plugin with its reason."""
    found = plugins or Plugins()
    rows = [(offer.kind, offer.name, f"{offer.distribution} {offer.version}") for offer in found.offers]
    lines = _aligned([("kind", "use", "from"), *rows])
    doubled = [
        o.name for i, o in enumerate(found.offers) if (o.kind, o.name) in {(p.kind, p.name) for p in found.offers[:i]}
    ]
    lines += [
        f"\n{name!r} is offered more than once: write `use: distribution/{name}`" for name in sorted(set(doubled))
    ]
    lines += [f"\nnote: {n.distribution} {n.version}: {n.text}" for n in found.notes]
    lines += [f"\n{told}" for told in found.left_out]
    lines += [f"\nbroken: {b.distribution} {b.version} ({b.entry_point}): {b.reason}" for b in found.broken]
    return "\n".join([*lines, "\nnext: seqpipe plugins show NAME"])


def show_component(name: str, plugins: Plugins | None = None) -> str:
    """The options of every component of that name: type, default, meaning."""
    found = plugins or Plugins()
    kind, _, use = name.partition("/") if name.partition("/")[0] in KINDS else ("", "", name)
    offers = [o for o in found.offers if use in (o.name, f"{o.distribution}/{o.name}") and kind in ("", o.kind)]
    if not offers:
        names = {offer.name for offer in found.offers}
        raise PluginError(f"no component named {name!r}{nearest(name, names)} (there is: {', '.join(sorted(names))})")
    return "\n\n".join(map(_shown, offers))


def _shown(offer: Offer) -> str:
    component = offer.load()
    summary = (component.__doc__ or "").strip().split("\n\n")[0]
    rows = [("option", "type", "default", ""), *describe(component)]
    head = f"{offer.kind} {offer.name} ({offer.distribution} {offer.version})\n{summary}\n"
    return "\n".join([head, *_aligned([tuple(map(str, row)) for row in rows])])


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
