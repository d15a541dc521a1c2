"""The checks of one component, and of every component that an installed distribution offers."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from seqpipe.config.plugins import ENTRY_POINT_GROUP, Offer, Plugins
from seqpipe.config.signature import option_fields, options_model
from seqpipe.errors import PluginError, UsageError, did_you_mean
from seqpipe.testing.isolation import IMPORT, check_import
from seqpipe.testing.report import Check, FaultError, Finding, Report, Subject, run_checks

LOADS, OPTIONS = "loads", "options to check it with"
_LOADS = "Correct the cause that the message names; hooks return dicts from names to classes or 'package.module:Class'"


def check_installed(package: str, settings: Mapping[str, Any]) -> list[Report]:
    """See seqpipe.testing.check_package."""
    grouped, canonical = metadata.entry_points(group=ENTRY_POINT_GROUP), canonicalize_name(package)
    entry_points = [e for e in grouped if e.dist and canonicalize_name(e.dist.name) == canonical]
    if not entry_points:
        names = {e.dist.name for e in grouped if e.dist}
        raise UsageError(
            f"no installed distribution {package!r} has an entry point in the group {ENTRY_POINT_GROUP!r}"
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
            reports.append(check_component(Subject(offer.kind, cls, options), component))
    return reports


def _entry_point(entry_point: metadata.EntryPoint, plugins: Plugins) -> Report:
    def loads() -> None:
        for broken in plugins.broken:
            if broken.entry_point == entry_point.name:
                raise FaultError(broken.reason)
        if not plugins.offers:
            raise FaultError("its hooks offer no component")

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


def check_component(
    subject: Subject, name: str = "", content: str | bytes | None = None, expected: Sequence[Mapping[str, Any]] = ()
) -> Report:
    """Run all checks of a component and return the report. Modules that need torch are imported here."""
    name = name or f"{subject.kind} {subject.cls.__name__}"
    with tempfile.TemporaryDirectory(prefix="seqpipe-testing-") as path:
        folder = Path(path)
        if subject.kind == "reader":
            from seqpipe.testing.readers import reader_checks

            return run_checks(name, reader_checks(subject, content, expected, folder))
        if subject.kind == "tokenizer":
            from seqpipe.testing.tokenizers import tokenizer_checks

            return run_checks(name, tokenizer_checks(subject))
        from seqpipe.testing.bench import Bench
        from seqpipe.testing.graphs import Graph
        from seqpipe.testing.heads import head_checks
        from seqpipe.testing.incremental import incremental_checks, streaming_checks
        from seqpipe.testing.stages import quiet, stage_checks

        bench = Bench(subject, folder)
        more = head_checks(bench) if subject.kind == "head" else incremental_checks(bench)
        with quiet():
            return run_checks(name, [*stage_checks(bench), *more, *streaming_checks(bench), *Graph(bench).checks()])
