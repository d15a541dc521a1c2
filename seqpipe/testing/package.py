"""The checks of every component that an installed distribution offers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from typing import Any

from packaging.utils import canonicalize_name

from seqpipe.config.plugins import GROUP, Offer, Plugins
from seqpipe.config.signature import option_fields, options_model
from seqpipe.errors import PluginError, UsageError, did_you_mean
from seqpipe.testing.isolation import IMPORT, check_import
from seqpipe.testing.report import Check, FaultError, Finding, Report, Subject, run_checks

LOADS, OPTIONS = "loads", "options to check it with"
_LOADS = "Correct the cause that the message names; hooks return dicts from names to classes or 'package.module:Class'"


def check_installed(package: str, settings: Mapping[str, Any]) -> list[Report]:
    """See seqpipe.testing.check_package."""
    from seqpipe import testing

    grouped, canonical = metadata.entry_points(group=GROUP), canonicalize_name(package)
    entry_points = [e for e in grouped if e.dist and canonicalize_name(e.dist.name) == canonical]
    if not entry_points:
        names = {e.dist.name for e in grouped if e.dist}
        raise UsageError(
            f"no installed distribution {package!r} has an entry point in the group {GROUP!r}"
            f"{did_you_mean(package, names)} (there is: {', '.join(sorted(names)) or 'none'}); pip install it first"
        )
    plugins = Plugins(entry_points)
    for name in settings:
        if not any(name.rpartition(".")[0] in ("", offer.name) for offer in plugins.offers):
            names = {offer.name for offer in plugins.offers}
            raise UsageError(
                f"{name}: {package} has no component of that name{did_you_mean(name.split('.')[0], names)}"
            )
        if "." not in name and not any(name in _names(offer) for offer in plugins.offers):
            raise UsageError(f"{name}: no component of {package} has this option; see `seqpipe plugins show NAME`")
    reports = [_entry_point(entry_point, plugins) for entry_point in entry_points]
    for offer in plugins.offers:
        component = f"{offer.kind} {offer.name}"
        try:
            cls = offer.load()
            options, missing = _options(cls, offer.name, settings)
        except PluginError as error:
            reports.append(Report(component, (Finding(LOADS, "failed", str(error), _LOADS),)))
            continue
        if missing:
            message = f"{' and '.join(map(repr, missing))} {'have' if len(missing) > 1 else 'has'} no default"
            fix = f"Give --set {offer.name}.{missing[0]}=VALUE, or add Field(examples=[…]) to its annotation"
            reports.append(Report(component, (Finding(OPTIONS, "skipped", message, fix),)))
        else:
            reports.append(testing.report(Subject(offer.kind, cls, options), component))
    return reports


def _entry_point(entry_point: metadata.EntryPoint, plugins: Plugins) -> Report:
    def loads() -> None:
        for broken in plugins.broken:
            if broken.entry_point == entry_point.name:
                raise FaultError(broken.reason, _LOADS)
        if not plugins.offers:
            raise FaultError("its hooks offer no component", _LOADS)

    checks = [
        Check(LOADS, loads, _LOADS),
        Check(IMPORT, lambda: check_import(entry_point.module, False), _LOADS, (LOADS,)),
    ]
    return run_checks(f"entry point {entry_point.name}", checks)


def _options(cls: type, name: str, settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The options to check a component with, and the required ones that are missing."""
    chosen, missing = {}, []
    for option, info in option_fields(options_model(cls)).items():
        set_values = [settings[key] for key in (f"{name}.{option}", option) if key in settings]
        examples = set_values or info.examples or []
        if set_values or (info.is_required() and examples):
            chosen[option] = examples[0]
        elif info.is_required():
            missing.append(option)
    set_here = {key.removeprefix(f"{name}."): value for key, value in settings.items() if key.startswith(f"{name}.")}
    return set_here | chosen, missing  # unknown options stay: the check reports them


def _names(offer: Offer) -> set[str]:
    """The options of a component; empty if it cannot be loaded, which its report states."""
    try:
        return set(option_fields(options_model(offer.load())))
    except PluginError:
        return set()
