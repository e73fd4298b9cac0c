"""Results on disk under the content of the call that made them: what lets a sweep be killed and go on.

An entry may be missing, and then the call is made again; it is never trusted when it is damaged, and never
unpickled: it is a checksum followed by one array in numpy's .npy format, read with ``allow_pickle=False``.
"""

from __future__ import annotations

import ast
import dis
import enum
import functools
import hashlib
import importlib.machinery
import importlib.util
import inspect
import io
import os
import re
import sys
import textwrap
import threading
import types
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

import labkit
from labkit import compute

DISPLAY = ("panel.py", "plots.py", "checks", "course", "results")  # what no study elsewhere depends on
PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes, range, slice)  # repr says it all


class CacheError(RuntimeError):
    """The cache folder cannot be used; the text says why and what to do."""


def home() -> Path:
    """The folder of the cache: ``LABKIT_CACHE`` when set, else labkit's folder in the user's cache folder.

    Nothing removes old entries. The folder may be deleted at any time: what is needed is computed again. Raises
    CacheError when a "~" in it stands for nobody's home.
    """
    import platformdirs  # only who has no folder of their own pays for the import

    place = Path(os.environ.get("LABKIT_CACHE") or platformdirs.user_cache_path("labkit", appauthor=False))
    return _expanded(place)


def _expanded(place: Path) -> Path:
    try:
        return place.expanduser()
    except RuntimeError as error:
        raise CacheError(
            f"the cache folder {str(place)!r} is nowhere ({error}): point LABKIT_CACHE to a folder of yours"
        ) from error


# ---- keys


def study_key(function: types.FunctionType) -> str:
    """A name for everything that a result of ``function`` depends on besides its arguments.

    In it is every function and class that the study reaches by the variables it reads or closes over, with the values
    of those, and the whole text of each file of yours from which one comes or which such a file imports; of a notebook
    and of the script that was started, where studies are run and plotted, only the text of what is reached. Added are
    labkit's version and source, the profile and the device.

    Not covered: Python and installed packages, data files, imports by a computed name, and, in files of yours, what a
    variable without content (a logger, a generator) has come to hold. In a notebook such a variable is refused.

    Raises TypeError for what is not a function made by ``def`` or ``lambda`` or uses a variable without content,
    ValueError when the source cannot be read.
    """
    if not inspect.isfunction(function):
        raise TypeError(f"function must be one made by def, got {function!r}: call it inside a function of yours")
    return _digest(_code_key(function), _labkit_source(), compute.profile(), str(compute.device()))


def value_key(value: Any, what: str = "a value") -> str:
    """A name for the content of an argument; ``what`` it is called when it has none to go by: TypeError.

    >>> value_key([1, 2.0]) == value_key([1, 2.0]) != value_key((1, 2.0))
    True
    """
    return _digest(_content(value, what))


def entry_key(study: str, arguments: dict[str, str]) -> str:
    """The name of one call, from the `value_key` of each argument, in whatever order."""
    return _digest(study, arguments)


def loaded_code(function: types.FunctionType) -> dict[str, str]:
    """A checksum of each file of yours that a study reaches as it was imported here, whatever is in the file now."""
    reached: dict[int, Any] = {}
    try:
        _content(function, "", reached)
    except TypeError:  # something without content: what was reached until then is compared
        pass
    files = {name for value in reached.values() if isinstance(_file(name := _home(value)), Path)}
    plain = importlib.machinery.SourceFileLoader  # what others load, such as pytest, is not as written
    return {name: loaded_module(name) for name in files if type(sys.modules[name].__spec__.loader) is plain}


def loaded_module(name: str) -> str:
    return _digest(list(_loaded(sys.modules[name], name)))


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(_content(parts, "")).encode()).hexdigest()[:40]


def _content(value: Any, what: str, reached: dict[int, Any] | None = None) -> Any:
    """Nested tuples of plain values that are equal exactly when the contents are.

    Code has a content only for who passes a dict ``reached``: it gets the functions, classes and modules by their id.
    """
    import torch

    if type(value) in PLAIN:
        return type(value).__name__, value
    if type(value) in (torch.dtype, torch.device, torch.Size):
        return "torch", str(value)
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_meta:
        bits = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        bits = bits.view(torch.uint8)  # bfloat16 has no numpy twin
        return "tensor", str(value.dtype), tuple(value.shape), hashlib.sha256(bits.numpy()).hexdigest()
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return "array", value.dtype.descr, value.shape, hashlib.sha256(value.tobytes()).hexdigest()
    if isinstance(value, Path):
        return "path", str(value)
    if isinstance(value, list | tuple):
        return _kind(value, what, reached), *(_content(item, what, reached) for item in value)
    if isinstance(value, set | frozenset):
        return _kind(value, what, reached), *sorted(repr(_content(item, what, reached)) for item in value)
    if isinstance(value, dict | types.MappingProxyType):
        items = ((repr(_content(key, what, reached)), _content(item, what, reached)) for key, item in value.items())
        return _kind(value, what, reached), *sorted(items, key=lambda item: item[0])
    if isinstance(value, enum.Enum):
        return _kind(value, what, reached), value.name, _content(value.value, what, reached)
    if is_dataclass(value) and not isinstance(value, type):
        parts = [(field.name, _content(getattr(value, field.name), what, reached)) for field in fields(value)]
        return _kind(value, what, reached), *parts
    if reached is not None:
        return _code(value, what, reached)
    raise TypeError(
        f"{what} is of type {type(value).__name__}, which has no content to name a result by: use numbers, texts, "
        "arrays, tensors or dataclasses of them, or say cache=False"
    )


def _kind(value: Any, what: str, reached: dict[int, Any] | None) -> Any:
    """The type of a value: what its methods do is part of its content."""
    kind = type(value)
    if kind.__module__ == "builtins":
        return kind.__name__
    return _code_key(kind) if reached is None else _content(kind, what, reached)


def _code_key(value: Any) -> str:
    """A function or class, with the source of everything that it reaches."""
    reached: dict[int, Any] = {}
    parts = _content(value, getattr(value, "__qualname__", ""), reached)
    return _digest(parts, *_sources(reached.values()))


# What a study reaches. Whatever is not understood here has no content, so that nothing is left out unnoticed.

HOLDERS = ("__func__", "__self__", "__wrapped__", "fget", "fset", "fdel", "func", "args", "keywords", "default_factory")
NO_MEMBERS = ("__dict__", "__weakref__", "__doc__", "__module__", "__firstlineno__", "__static_attributes__")
READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def _code(value: Any, what: str, reached: dict[int, Any]) -> Any:
    """A module, function, class or any object that holds some."""
    name = getattr(value, "__qualname__", getattr(value, "__name__", type(value).__name__))
    if isinstance(value, types.ModuleType):
        reached[id(value)] = value
        return "module", value.__name__
    if _named(value):
        return "name", getattr(value, "__module__", None), name
    if id(value) in reached:
        return "again", name
    reached[id(value)] = value
    if inspect.isfunction(value):
        return _function(value, reached)
    if isinstance(value, type):
        if _home(value) != "__main__":  # the text of its file tells the rest
            return "class", value.__module__, name, *_loaded(value, value.__module__)
        bases = [_content(base, what, reached) for base in value.__bases__]
        members = [(key, member) for key, member in vars(value).items() if key not in NO_MEMBERS and not _made(member)]
        return "class", name, bases, *((key, _part(member, what, reached, False)) for key, member in members)
    yours = bool(_file(type(value).__module__))
    held = [(key, getattr(value, key)) for key in HOLDERS if not yours and hasattr(value, key)]
    held += vars(value).items() if hasattr(value, "__dict__") else ()
    if not (held or yours):
        return _content(value, what)  # raises
    return _content(type(value), what, reached), *((key, _part(item, what, reached, yours)) for key, item in held)


def _function(function: types.FunctionType, reached: dict[int, Any]) -> Any:
    code, name, home = function.__code__, function.__qualname__, _home(function)
    used: dict[str, Any] = {f"{key} of {name}": item for key, item in vars(function).items()}
    used |= zip(code.co_freevars, (cell.cell_contents for cell in function.__closure__ or ()), strict=True)
    used |= {f"a default of {name}": (function.__defaults__, function.__kwdefaults__)}
    if _file(home):
        opened = {key: function.__globals__[key] for key in sorted(_read(code)) if key in function.__globals__}
        for key, module in list(opened.items()):
            if isinstance(module, types.ModuleType) and _file(module.__name__):  # what it takes from a module of yours
                opened |= {f"{key}.{part}": vars(module)[part] for part in _words(code) if part in vars(module)}
        used = opened | used
    strict = home == "__main__"  # elsewhere the text of the file makes it
    parts = ((key, _part(value, f"{key}, which {name} uses,", reached, strict)) for key, value in used.items())
    return "function", function.__module__, name, _compiled(code) if _file(home) else (), *parts


def _part(value: Any, what: str, reached: dict[int, Any], strict: bool) -> Any:
    try:
        return _content(value, what, reached)
    except TypeError:
        if strict:
            raise
        return type(value).__name__


def _loaded(holder: Any, module: str) -> Iterator[Any]:
    """The functions and constants of a module or class as imported: its file may have been edited since."""
    for key, member in vars(holder).items():
        if isinstance(member, types.ModuleType):
            continue
        for part in (member, *(getattr(member, name, None) for name in HOLDERS)):
            if inspect.isfunction(part) and _home(part) == module:
                yield key, _compiled(part.__code__)
        if isinstance(member, type) and member.__module__ == module and member is not holder:
            if member.__qualname__.startswith(getattr(holder, "__qualname__", "")):
                yield from _loaded(member, module)
        elif key.isupper() and type(member) in PLAIN:
            yield key, member


def _home(value: Any) -> str:
    """The module in which something was written; "__main__" for a notebook and for the script that was started."""
    if inspect.isfunction(value):
        name = value.__globals__.get("__name__")
    else:
        name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return "__main__" if name == "__mp_main__" else str(name)


def _file(module: str) -> Path | bool | None:
    """The file of a module of yours; True for "__main__"; None for Python's, installed ones and labkit."""
    if module == "__main__":
        return True
    first, room, *_ = f"{module}.".split(".")
    if first in sys.stdlib_module_names or (first == "labkit" and not {room, f"{room}.py"} & {*DISPLAY}):
        return None
    spec = _spec(module)
    path = Path(spec.origin) if spec and spec.has_location else Path()
    return path if path.suffix == ".py" and not _installs(path.parents[module.count(".")]) else None


def _spec(module: str) -> importlib.machinery.ModuleSpec | None:
    """Where a module is, without importing it or what it is in."""
    if module in sys.modules:
        return getattr(sys.modules[module], "__spec__", None)
    if not (parent := module.rpartition(".")[0]):
        return importlib.util.find_spec(module)
    places = getattr(_spec(parent), "submodule_search_locations", None)
    return importlib.machinery.PathFinder.find_spec(module, places) if places else None


@functools.cache
def _installs(folder: Path) -> bool:
    """Whether packages are installed into this folder, or into the one it is in (a package has an __init__.py)."""
    named = {"site-packages", "dist-packages"} & {*folder.parts}
    return bool(named) or any(next(place.glob("*.dist-info"), None) for place in (folder, folder.parent))


def _named(value: Any) -> bool:
    """Whether an installed package has this function or class under its own name, so that the name says it all."""
    if isinstance(value, np.ufunc):
        return not value.__name__.endswith("(vectorized)")  # that of np.frompyfunc
    module = sys.modules.get(str(getattr(value, "__module__", None)))
    if not callable(value) or module is None or _file(module.__name__):
        return False
    ways = (getattr(value, "__qualname__", "").split("."), [getattr(value, "__name__", "")])
    return any(functools.reduce(lambda at, part: getattr(at, part, None), way, module) is value for way in ways)


def _made(member: Any) -> bool:
    """Whether a method was made by dataclass or NamedTuple, from what else the class holds."""
    return inspect.isfunction(member) and inspect.unwrap(member).__code__.co_filename.startswith("<string>")


def _sources(reached: Iterable[Any]) -> list[Any]:
    """The text of the functions of "__main__"; of other modules of yours, and what they import, the whole text."""
    found, modules = [], []
    for value in reached:
        if (home := _home(value)) == "__main__" and inspect.isfunction(value):
            found.append((value.__qualname__, source := _source(value)))
            modules += _imported(source, value.__globals__.get("__package__"))
        elif home != "__main__":
            modules.append(home)
    texts: dict[str, str] = {}
    while modules:
        if (name := modules.pop()) not in texts and isinstance(path := _file(name), Path):
            texts[name] = path.read_text(encoding="utf-8")
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            modules += [name.rpartition(".")[0] or name, *_imported(texts[name], package)]
    return [*found, *sorted(texts.items())]


def _source(function: types.FunctionType) -> str:
    try:
        return inspect.getsource(function.__code__)
    except (OSError, TypeError):
        raise ValueError(
            f"the source of {function.__qualname__} cannot be read, so that its results cannot be told from those of "
            "another function of that name: define it in a file or in a notebook, or say cache=False (also for a sweep "
            "within a function that a notebook sent to another process)"
        ) from None


def _imported(source: str, package: str | None) -> Iterator[str]:
    try:
        nodes = ast.walk(ast.parse(textwrap.dedent(source)))
    except SyntaxError:  # a lambda amid the lines of a call, which has no imports
        return
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (package or not node.level):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield from (module, *(f"{module}.{alias.name}" for alias in node.names))


def _read(code: types.CodeType) -> set[str]:
    """The global names that a function reads, in its inner functions and classes too."""
    inner = [_read(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return {step.argval for step in dis.get_instructions(code) if step.opname in READS}.union(*inner)


def _words(code: types.CodeType) -> list[str]:
    inner = [_words(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return sorted({*code.co_names}.union(*inner))


def _compiled(code: types.CodeType) -> Any:
    parts = [_compiled(part) if isinstance(part, types.CodeType) else part for part in code.co_consts]
    return code.co_code, code.co_names, _content(parts, "")


@functools.cache
def _labkit_source() -> str:
    """labkit's version and a checksum of its source, without what only shows or grades results."""
    root, checksum = Path(labkit.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] not in DISPLAY:
            checksum.update(path.read_bytes())
    return f"{labkit.__version__} {checksum.hexdigest()}"


# ---- entries


@dataclass(frozen=True)
class Cache:
    """The entries of one study: a folder with one file per call."""

    folder: Path

    @classmethod
    def open(cls, function: types.FunctionType, root: str | Path | None = None) -> Cache:
        """The entries of ``function`` in ``root`` (default: sweep/ in `home`). Raises CacheError when it is no use."""
        key = study_key(function)[:16]
        name = re.sub(r"\W+", "_", f"{function.__module__}.{function.__qualname__}")[-60:]
        # absolute: the study may go to another folder
        folder = (_expanded(Path(root)) if root else home() / "sweep").absolute() / f"{name}-{key}"
        probe = folder / f"{_own()}.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except (OSError, ValueError) as error:  # ValueError: a null character
            reason = getattr(error, "strerror", error)
            raise CacheError(
                f"the cache folder {str(folder)!r} cannot be written ({reason}): point LABKIT_CACHE to a folder of "
                "yours, or say cache=False"
            ) from error
        return cls(folder)

    def read(self, key: str) -> dict[str, np.ndarray] | None:
        """The result, or None when there is none; a damaged entry is removed with a warning."""
        path = self.folder / key
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:  # it may well be intact, and too many files be open
            warnings.warn(f"the cache entry {path} cannot be read ({error}); it is computed again", stacklevel=2)
            return None
        try:
            if data[:32] != _checksum(key, data[32:]):
                raise ValueError("its checksum is wrong")
            row = np.load(io.BytesIO(data[32:]), allow_pickle=False)
            return {name: row[name] for name in row.dtype.names}
        except (ValueError, TypeError, EOFError) as error:
            warnings.warn(f"the cache entry {path} is damaged ({error}); it is computed again", stacklevel=2)
            path.unlink(missing_ok=True)
            return None

    def write(self, key: str, result: dict[str, np.ndarray]) -> None:
        """Store a result: the entry is there as a whole or not at all. Raises OSError, e.g. on a full disk."""
        row = np.empty((), [(name, value.dtype, value.shape) for name, value in result.items()])
        for name, value in result.items():
            row[name] = value
        content = io.BytesIO()
        np.lib.format.write_array(content, row, version=(3, 0), allow_pickle=False)  # 3.0: a name may be λ
        data = content.getvalue()
        temporary = self.folder / f"{key}.{_own()}.tmp"
        try:
            temporary.write_bytes(_checksum(key, data) + data)
            temporary.replace(self.folder / key)
        finally:
            temporary.unlink(missing_ok=True)

    def claim(self, key: str) -> bool:
        """Say that this process works on an entry; False when another one said so before, alive or not."""
        try:
            (self.folder / f"{key}.claim").touch(exist_ok=False)
        except FileExistsError:
            return False
        except OSError:  # a full disk: working twice is better than not at all
            return True
        return True

    def release(self, key: str) -> None:
        try:
            (self.folder / f"{key}.claim").unlink(missing_ok=True)
        except OSError:  # whoever finds it only comes back to the entry later
            return


def _checksum(key: str, data: bytes) -> bytes:
    """Covers the key too: an intact entry of another call is foreign here."""
    return hashlib.sha256(key.encode() + data).digest()


def _own() -> str:
    return f"{os.getpid()}-{threading.get_ident()}"
