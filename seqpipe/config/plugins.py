"""Components of installed distributions and of plugin files; a broken distribution affects no other."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pkgutil
import sys
import time
import traceback
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy

from seqpipe.config import hookspecs
from seqpipe.errors import PluginError, SeqpipeError, did_you_mean, install_command
from seqpipe.files import cache_folder, make_folder, write
from seqpipe.version import PLUGIN_API

if TYPE_CHECKING:
    from packaging.requirements import Requirement

ENTRY_POINT_GROUP = "seqpipe"
KINDS = ("reader", "tokenizer", "embedding", "encoder", "head")
BUILTIN = "seqpipe-nlp"  # the distribution of the built-ins
API_ATTRIBUTE = "SEQPIPE_PLUGIN_API"  # of the module that an entry point names


@dataclass(frozen=True)
class Offer:
    """A component that a distribution offers under a name."""

    kind: str
    name: str
    distribution: str
    version: str
    target: type | str

    def load(self) -> type:
        """Return the component's class; PluginError with the distribution if it cannot be loaded."""
        if isinstance(self.target, type):
            return self.target
        problem = f"{self.kind} {self.name!r} of {self.distribution} {self.version} cannot be loaded"
        try:
            with contextlib.redirect_stdout(sys.stderr):  # standard output is for answers
                cls = pkgutil.resolve_name(self.target)
        except (Exception, SystemExit) as error:  # a plugin may raise any exception
            raise PluginError(f"{problem}: {_reason(error)}") from error
        if not isinstance(cls, type):
            raise PluginError(f"{problem}: {self.target} is not a class")
        return cls


@dataclass(frozen=True)
class Broken:
    """A failed entry point, with its distribution and the reason."""

    distribution: str
    version: str
    entry_point: str
    reason: str


class Plugins:
    """Components of the given entry points; by default those of all installed distributions.

    Args:
        entry_points: Entry points to load.
        allow: Requirements such as `acme-conv>=1,<2`; plugins of other distributions and versions are left out and not
            imported. None allows all. The built-ins are always loaded.
        files: Plugins of one Python file each; PluginError names the line of a broken one. Their distribution is the
            name of the file, their version its sha256.

    With SEQPIPE_PLUGINS=off only the built-ins and the files are loaded.
    """

    def __init__(
        self,
        entry_points: Iterable[metadata.EntryPoint] | None = None,
        allow: Sequence[Requirement] | None = None,
        files: Sequence[Path] = (),
    ):
        self.offers: list[Offer] = []
        self.broken: list[Broken] = []
        self.notes: list[str] = []  # about working plugins that slow down or disturb every command
        self.left_out: list[str] = []
        self.allow = allow
        off = os.environ.get("SEQPIPE_PLUGINS", "").lower() == "off"
        for entry_point in metadata.entry_points(group=ENTRY_POINT_GROUP) if entry_points is None else entry_points:
            owner = entry_point.dist
            unknown = entry_point.value.partition(":")[0], "?"
            distribution, version = (owner.name, owner.version) if owner else unknown
            hindrance = "" if distribution == BUILTIN else _exclusion_reason(distribution, version, off, allow)
            if hindrance:
                self.left_out.append(f"{distribution} {version} is left out: {hindrance}")
            else:
                self._load_entry_point(entry_point, distribution, version)
        for file in dict.fromkeys(file.resolve() for file in files):
            if any(offer.distribution == file.name for offer in self.offers):
                raise PluginError(f"{file}: another plugin is called {file.name} too; rename one of them")
            self.offers += _offers_of_file(file)
        self.offers.sort(key=attrgetter("name", "distribution"))
        self.offers = [offer for kind in KINDS for offer in self.offers if offer.kind == kind]

    def _load_entry_point(self, entry_point: metadata.EntryPoint, distribution: str, version: str) -> None:
        printed, clock = io.StringIO(), time.perf_counter()
        try:
            with contextlib.redirect_stdout(printed):  # standard output is for answers
                plugin = entry_point.load()
                self.offers += _offers(plugin, distribution, version)
        except (Exception, SystemExit) as error:  # a plugin may raise any exception
            self.broken.append(Broken(distribution, version, entry_point.name, _reason(error)))
        seconds = time.perf_counter() - clock
        if seconds > 0.5 and distribution != BUILTIN:
            message = f"its import slows every command down by {seconds:.1f} s; offer components as 'module:Class'"
            self.notes.append(f"{distribution} {version}: {message}")
        sys.stderr.write(printed.getvalue())
        if text := " ".join(printed.getvalue().split()):
            self.notes.append(f"{distribution} {version}: it prints when it is imported: {text[:80]}")

    def names(self, kind: str) -> list[str]:
        """Return the names that are valid in `use:` for this kind, sorted."""
        return sorted({offer.name for offer in self.offers if offer.kind == kind})

    def find(self, kind: str, use: str) -> Offer:
        """Return the component that `use` names: a name, or `distribution/name`; PluginError lists the alternatives."""
        distribution, _, name = use.rpartition("/")
        offers = [o for o in self.offers if o.kind == kind and o.name == name and distribution in ("", o.distribution)]
        if len(offers) == 1:
            return offers[0]
        if offers:
            choices = " or ".join(f"'{offer.distribution}/{name}'" for offer in offers)
            raise PluginError(f"{kind} {name!r} is offered by more than one distribution; write {choices}")
        if distribution and not any(offer.distribution == distribution for offer in self.offers):
            self._refuse_missing(f"no {kind} named {use!r}", distribution)
        elsewhere = [offer.kind for offer in self.offers if offer.name == name]
        other_kind = f"; {name!r} is a component of another kind: {elsewhere[0]}" if elsewhere else ""
        near = [o.name for o in self.offers if o.kind == kind and distribution in ("", o.distribution)]
        hint = did_you_mean(name, near) or other_kind
        broken = "".join(f"; {b.distribution} {b.version} is broken: {b.reason}" for b in self.broken)
        broken += "".join(f"; {message}" for message in self.left_out)
        known = ", ".join(self.names(kind)) or "none"
        raise PluginError(f"no {kind} named {use!r}{hint} (there is: {known}{broken})")

    def _refuse_missing(self, problem: str, distribution: str) -> None:
        """Raise PluginError for a distribution that is not installed, or a plugin file that was not given."""
        if distribution.endswith(".py"):
            raise PluginError(f"{problem}: the plugin file is not loaded; give it with --plugin {distribution}")
        with contextlib.suppress(metadata.PackageNotFoundError, ValueError):
            metadata.version(distribution)
            return  # it is left out, broken, or has no such component
        allowed = (str(requirement) for requirement in self.allow or () if requirement.name == distribution)
        fix = f'pip install "{next(allowed, distribution)}"'
        raise PluginError(f"{problem}: the package {distribution} is not installed; install it with {fix}")


def installed_names(anew: bool = False) -> dict[str, list[str]]:
    """Return the names of the installed components by kind, as cached until a version changes, or `anew`."""
    entry_points = [*metadata.entry_points(group=ENTRY_POINT_GROUP)]
    owners = sorted(f"{point.dist.name} {point.dist.version}" for point in entry_points if point.dist)
    key = [os.environ.get("SEQPIPE_PLUGINS", ""), *owners]
    # Without a cache, or the package that finds its folder, a completion takes longer, and cannot report that.
    with contextlib.suppress(ImportError, OSError, ValueError, LookupError, TypeError):
        cached = json.loads((cache_folder() / "components.json").read_bytes())
        if cached["key"] == key and not anew:
            return dict(cached["names"])
    plugins = Plugins(entry_points)
    names = {kind: plugins.names(kind) for kind in KINDS}
    with contextlib.suppress(ImportError, OSError, SeqpipeError):
        make_folder(cache_folder())
        write(cache_folder() / "components.json", json.dumps({"key": key, "names": names}))
    return names


def _exclusion_reason(distribution: str, version: str, off: bool, allow: Sequence[Requirement] | None) -> str:
    """Return the reason why a distribution's plugins are not loaded; "" if they are."""
    if off:
        return "SEQPIPE_PLUGINS is off"
    if allow is None:
        return ""
    from packaging.utils import canonicalize_name

    name = canonicalize_name(distribution)
    mine = [requirement for requirement in allow if canonicalize_name(requirement.name) == name]
    if any(requirement.specifier.contains(version, prereleases=True) for requirement in mine):
        return ""
    return f"plugins.allow requires {str(mine[0])!r}" if mine else "plugins.allow does not list it"


def _offers(plugin: object, distribution: str, version: str) -> list[Offer]:
    """Register one plugin in a separate manager, to isolate its errors, and read its tables."""
    api = getattr(plugin, API_ATTRIBUTE, PLUGIN_API)
    if api != PLUGIN_API:
        fix = f"install a version of it with {API_ATTRIBUTE} = {PLUGIN_API}, or another version of seqpipe-nlp"
        raise PluginError(f"it is written for plugin API {api}, and this seqpipe has {PLUGIN_API}; {fix}")
    manager = pluggy.PluginManager(ENTRY_POINT_GROUP)
    manager.add_hookspecs(hookspecs)
    manager.register(plugin, name=distribution)
    manager.check_pending()
    callers = manager.get_hookcallers(plugin)
    if not callers:
        raise TypeError("it has no hook; decorate register_readers, register_encoders … with @seqpipe.plugin.hookimpl")
    offers = []
    for caller in callers:
        kind = caller.name.removeprefix("register_").removesuffix("s")
        for implementation in caller.get_hookimpls():
            table = implementation.function()
            if not isinstance(table, Mapping):
                raise TypeError(f"{caller.name} must return a dict of names, not {type(table).__name__}")
            for name, target in table.items():
                fits = isinstance(target, type) or (isinstance(target, str) and ":" in target)
                if not (isinstance(name, str) and fits):
                    expected = "must map names to classes or 'module:Class'"
                    raise TypeError(f"{caller.name} {expected}, not {name!r}: {target!r}")
                offers.append(Offer(kind, name, distribution, version, target))
    return offers


def _offers_of_file(path: Path) -> list[Offer]:
    """Import one Python file and return its components; PluginError names the line that fails."""
    try:
        code = path.read_bytes()
    except OSError as error:
        fix = "--plugin takes a Python file with a hook; an installed plugin needs no --plugin"
        raise PluginError(f"{path}: {(error.strerror or str(error)).lower()}; {fix}") from None
    digest = hashlib.sha256(code).hexdigest()
    # The module is named by its content, so that a process that loads the file twice has each class once, and reloads
    # it after an edit. The hashed bytes are compiled: the import system could use an old .pyc instead.
    name = f"plugin_file_{digest}"
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for answers
            if name not in sys.modules:
                module = sys.modules[name] = types.ModuleType(name)
                module.__file__ = str(path)
                exec(compile(code, str(path), "exec"), vars(module))
            offers = _offers(sys.modules[name], path.name, f"sha256:{digest}")
        if texts := [offer.target for offer in offers if isinstance(offer.target, str)]:
            raise TypeError(f"a plugin in one file must map names to classes, not to {texts[0]!r}")
    except (Exception, SystemExit) as error:  # a plugin may raise any exception
        sys.modules.pop(name, None)
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        if isinstance(error, SyntaxError) and error.filename == str(path):
            lines.append(error.lineno)
        place = f"{path}:{lines[-1]}" if lines else str(path)
        raise PluginError(f"{place}: the plugin is broken: {_reason(error)}") from error
    return offers


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    lacks_torch = isinstance(error, ModuleNotFoundError) and error.name == "torch"
    fix = f" (it needs the extra `train`: {install_command('train')})" if lacks_torch else ""
    return (f"{type(error).__name__}: {text}" if text else type(error).__name__) + fix
