"""Cache of exported graphs; the key is a hash of everything that determines a graph, except its weights' values."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from hashlib import sha256
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from seqpipe.config.plugins import FILE_MODULE
from seqpipe.files import cache_folder, write

# The key of an exported graph: a hash of everything that it depends on, the pipeline without its weights' values.

_PLAIN = (type(None), bool, int, float, complex, str, bytes, PurePath, torch.dtype, torch.device, re.Pattern)
_MAIN = {"__main__", "__mp_main__"}
_PINNED = {"torch", "transformers", "numpy", "tokenizers"}  # packages whose version determines their code


class UnknownKeyError(ValueError):
    """A pipeline has an attribute of a kind for which no key can be computed."""


def graph_key(pipeline: nn.Module, *more: Any) -> str:
    """Return a sha256 of everything that determines the graph of a pipeline, except values of parameters and buffers.

    That is: every attribute of every module, the shapes, types and sharing of weights, the code of every package that
    a module's class comes from or that is not installed in the usual folders, the versions of all others, and `more`.

    Raises:
        UnknownKeyError: for an attribute of unknown kind, or a class whose code is in no file.
    """
    digest = _Digest()
    digest.add((platform.python_version(), sorted(_installed_packages()), str(torch.get_default_dtype()), more))
    digest.add(pipeline)
    # Loaded packages outside the folders of installed ones, such as one in development, count by their code.
    usual = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
    files = {name: _module_value(name, "__file__") for name in [*sys.modules] if "." not in name}
    loose = {name for name, file in files.items() if file and name not in _MAIN and not file.startswith(usual)}
    for package in sorted((digest.packages | loose) - _PINNED):
        digest.add((package, _code(package)))
    return digest.hash.hexdigest()


def raw_bytes(tensor: Tensor) -> bytes:
    """Return the content of a tensor of any type in row-major order."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


class _Digest:
    """A hash of nested values, in which each object is entered once."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.packages = {"seqpipe"}
        self.seen: dict[int, int] = {}
        self.alive: list[Any] = []  # so that an id stays unique

    def add(self, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self._update(type(value).__name__, repr(value))
            return
        if id(value) in self.seen:
            self._update("again", str(self.seen[id(value)]))
            return
        self.seen[id(value)] = len(self.seen)
        self.alive.append(value)
        self._type(type(value))
        for part in self._parts(value):
            self.add(part)
        if isinstance(value, Mapping | tuple | list) and _has_attributes(value):  # a subclass
            self.add(vars(value))
        self._update("end", "")

    def _parts(self, value: Any) -> Iterable[Any]:
        """Return the parts of an object that determine the graph."""
        if isinstance(value, Tensor):
            # Weights never occur here: `_module` adds them. The content of any other tensor is in the graph.
            return (tuple(value.shape), value.dtype, raw_bytes(value))
        if isinstance(value, nn.Module):
            return self._module(value)
        if isinstance(value, Tokenizer):
            return (value.to_str(),)
        if isinstance(value, np.ndarray | np.generic):
            return (value.shape, str(value.dtype), value.tobytes())
        if isinstance(value, Mapping):
            return (part for pair in value.items() for part in pair)
        if isinstance(value, list | tuple):
            return value
        if isinstance(value, set | frozenset):
            return sorted(map(repr, value))
        if isinstance(value, Enum):
            return (value.name,)
        if isinstance(value, type):
            self._type(value)
            return ()
        if isinstance(value, weakref.ReferenceType):
            return (value(),)
        return _object(value)

    def _module(self, module: nn.Module) -> Iterator[Any]:
        weights = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
        for name, weight in weights:
            first = self.seen.setdefault(id(weight), len(self.seen))
            self.alive.append(weight)
            yield (name, first, tuple(weight.shape), weight.dtype)
        yield {name: value for name, value in vars(module).items() if name not in ("_parameters", "_buffers")}

    def _type(self, cls: type) -> None:
        for base in cls.__mro__[:-1]:
            if "<locals>" in base.__qualname__ or base.__module__ in _MAIN:
                raise UnknownKeyError(f"the class {base.__qualname__} of {base.__module__} is defined at run time")
            self.packages.add(base.__module__.partition(".")[0])
        self._update(cls.__module__, cls.__qualname__)

    def _update(self, *parts: str) -> None:
        for part in parts:
            data = part.encode("utf-8", "surrogatepass")
            self.hash.update(len(data).to_bytes(8, "little") + data)


def _object(value: Any) -> Iterable[Any]:
    """Return the parts of a function or of an object with attributes."""
    if isinstance(value, functools.partial):
        return (value.func, value.args, value.keywords)
    if isinstance(value, types.MethodType):
        return (value.__self__, value.__func__.__qualname__)
    if isinstance(value, types.FunctionType) and value.__closure__ is None:
        return (value.__module__, value.__qualname__, value.__defaults__, value.__kwdefaults__, value.__code__.co_code)
    if isinstance(value, types.BuiltinFunctionType):
        return (value.__module__, value.__qualname__)
    if dataclasses.is_dataclass(value):  # fields that are not compared do not affect the graph
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value) if field.compare]
    defines_state = type(value).__getstate__ is not object.__getstate__  # type: ignore[comparison-overlap]
    if defines_state:
        return (value.__getstate__(),)
    if _has_attributes(value) and not isinstance(value, Callable | Iterator):  # type: ignore[arg-type]
        return [*vars(value).items()]
    raise UnknownKeyError(f"{type(value).__module__}.{type(value).__qualname__}")


def _has_attributes(value: Any) -> bool:
    """Return whether a value has a dict of attributes of its own."""
    return type(value).__dictoffset__ != 0


@functools.cache
def _installed_packages() -> frozenset[tuple[str, str]]:
    """Return names and versions of the installed packages, from the names of their folders."""
    packages = set()
    for distribution in importlib.metadata.distributions():
        if isinstance(distribution, importlib.metadata.PathDistribution):  # its metadata would have to be parsed
            packages.add((PurePath(str(distribution._path)).name, ""))
        else:
            packages.add((distribution.name, distribution.version))
    return frozenset(packages)


def _module_value(module: str, name: str) -> Any:
    """Return an attribute of a loaded module; None if missing, such as the file of a C module or a namespace."""
    return getattr(sys.modules.get(module), name, None)


def _code(package: str) -> str:
    """Return a hash of the Python files of a package; for the standard library and plugin files, its name."""
    if package in sys.stdlib_module_names or package.startswith(FILE_MODULE):
        return package
    file, folders = _module_value(package, "__file__"), [*(_module_value(package, "__path__") or ())]
    files = [Path(folder, name) for top in folders for folder, _, names in os.walk(top) for name in names]
    files = sorted(path for path in files if path.suffix == ".py") if folders else [Path(file)] if file else []
    if not files:
        raise UnknownKeyError(f"the code of {package} is in no file")
    digest = hashlib.sha256()
    for path in files:
        digest.update(str(path.name).encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


# A cache on disk of exported graphs without their weights.
#
# An entry is read only if its hash is correct. The caller compares every graph with PyTorch, cached or not, and deletes
# an entry that answers differently (`seqpipe.export.exporter`).

MOST_BYTES = 256 * 1024 * 1024
_HASH = 32  # bytes in front of an entry


class GraphCache:
    """Folder of graphs by key; the least recently used entries are removed above `most` bytes."""

    def __init__(self, folder: Path, most: int = MOST_BYTES):
        self.folder, self.most = folder, most

    def read(self, key: str) -> bytes | None:
        """Return the graph of a key; None if there is none, or a damaged one."""
        path = self._path(key)
        try:
            entry = path.read_bytes()
        except OSError:
            return None
        data = entry[_HASH:]
        if sha256(data).digest() != entry[:_HASH]:
            self.delete(key)
            return None
        with contextlib.suppress(OSError):  # another process may have deleted it
            os.utime(path)
        return data

    def write(self, key: str, data: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write(self._path(key), sha256(data).digest() + data)
        entries = []
        for path in self.folder.glob("*.graph"):
            with contextlib.suppress(OSError):
                status = path.stat()
                entries.append((status.st_mtime, status.st_size, path))
        entries.sort(reverse=True)
        size = 0
        for _, bytes_, path in entries:
            size += bytes_
            if size > self.most:
                path.unlink(missing_ok=True)

    def delete(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.graph"


def default_cache() -> GraphCache:
    """Return the cache in `$SEQPIPE_CACHE`, or else in the user's cache folder."""
    return GraphCache(cache_folder() / "graphs")
