"""Results on disk under the content of the call that made them: what lets a sweep be killed and go on.

An entry may be missing, and then the call is made again; it is never trusted when it is damaged, and never
unpickled: it is a checksum followed by one array in numpy's .npy format, read with ``allow_pickle=False``.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import io
import os
import re
import threading
import types
import warnings
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

    Nothing removes old entries. The folder may be deleted at any time: what is needed is computed again.
    """
    import platformdirs  # only who has no folder of their own pays for the import

    return Path(os.environ.get("LABKIT_CACHE") or platformdirs.user_cache_path("labkit", appauthor=False)).expanduser()


# ---- keys


def study_key(function: types.FunctionType) -> str:
    """A name for everything that a result of ``function`` depends on besides its arguments.

    Covered: its module, qualified name, source and compiled code (the two differ when a file was edited after
    the import), its defaults, the variables it closes over and the global ones it reads, functions and classes
    of the same module among them, with theirs; labkit's version and source, the profile and the device.
    Not covered: what it reads from other modules than its own and labkit's, and from files.

    Raises TypeError for what is not a function made by ``def`` or ``lambda`` or uses a variable without content,
    ValueError when the source cannot be read.
    """
    if not inspect.isfunction(function):
        raise TypeError(f"function must be one made by def, got {function!r}: call it inside a function of yours")
    return _digest(_function(function, set()), _labkit_source(), compute.profile(), str(compute.device()))


def entry_key(study: str, arguments: dict[str, Any]) -> str:
    """The name of one call. Raises TypeError for an argument that has no content to go by.

    >>> entry_key("study", {"c": 0.1, "seed": 0}) == entry_key("study", {"seed": 0, "c": 0.1})
    True
    """
    return _digest(study, {name: _content(value, f"the argument {name}") for name, value in arguments.items()})


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(_content(parts, "")).encode()).hexdigest()[:40]


def _content(value: Any, what: str) -> Any:
    """Nested tuples of plain values that are equal exactly when the contents are."""
    import torch

    if type(value) in PLAIN:
        return type(value).__name__, value
    if type(value) in (torch.dtype, torch.device, torch.Size):
        return "torch", str(value)
    if isinstance(value, torch.Tensor):
        bits = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)  # bfloat16 has no numpy twin
        return "tensor", str(value.dtype), tuple(value.shape), hashlib.sha256(bits.numpy()).hexdigest()
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return "array", value.dtype.descr, value.shape, hashlib.sha256(value.tobytes()).hexdigest()
    if isinstance(value, Path):
        return "path", str(value)
    if isinstance(value, list | tuple):
        return type(value).__name__, *(_content(item, what) for item in value)
    if isinstance(value, set | frozenset):
        return "set", *sorted(repr(_content(item, what)) for item in value)
    if isinstance(value, dict):
        items = ((repr(_content(key, what)), _content(item, what)) for key, item in value.items())
        return "dict", *sorted(items, key=lambda item: item[0])
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        return type(value).__qualname__, *((name, _content(getattr(value, name), what)) for name in names)
    raise TypeError(
        f"{what} is of type {type(value).__name__}, which has no content to name a result by: use numbers, texts, "
        "arrays, tensors or dataclasses of them, or say cache=False"
    )


def _function(function: types.FunctionType, seen: set) -> Any:
    if function in seen:  # it calls itself
        return function.__qualname__
    seen.add(function)
    code, name = function.__code__, function.__qualname__
    try:
        source = inspect.getsource(code)
    except (OSError, TypeError):
        raise ValueError(
            f"the source of {name} cannot be read, so that its results cannot be told from those of another function "
            "of that name: define it in a file or in a notebook, or say cache=False"
        ) from None
    closed = {key: cell.cell_contents for key, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)}
    read = {key: function.__globals__[key] for key in sorted(_globals_read(code)) if key in function.__globals__}
    used = [
        (key, _variable(value, f"{key}, which {name} uses,", function.__module__, seen))
        for key, value in (closed | read).items()
    ]
    defaults = _content((function.__defaults__, function.__kwdefaults__), f"a default of {name}")
    return function.__module__, name, source, _compiled(code), defaults, *used


def _variable(value: Any, what: str, module: str, seen: set) -> Any:
    """A variable that a function uses: functions and classes of its own module by source, others by name."""
    if not inspect.isfunction(value):
        value = inspect.unwrap(value)  # functools.cache
    if isinstance(value, types.ModuleType):
        return "module", value.__name__
    name = getattr(value, "__module__", None), getattr(value, "__qualname__", getattr(value, "__name__", None))
    if callable(value) and name[1] and name[0] != module:
        return "name", *name
    if inspect.isfunction(value):
        return _function(value, seen)
    if isinstance(value, type):
        members = [(key, getattr(member, "__func__", member)) for key, member in vars(value).items()]  # static, class
        plain = [(key, member) for key, member in members if type(member) in PLAIN and not key.startswith("__")]
        written = [f for _, f in members if inspect.isfunction(f) and f.__code__.co_filename != "<string>"]
        bases = [_variable(base, what, module, seen) for base in value.__bases__]
        return "class", *name, bases, plain, *(_function(method, seen) for method in written)
    return _content(value, what)


def _globals_read(code: types.CodeType) -> set[str]:
    inner = [_globals_read(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}.union(*inner)


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
        name = re.sub(r"\W+", "_", f"{function.__module__}.{function.__qualname__}")[-60:]
        folder = Path(root or home() / "sweep") / f"{name}-{study_key(function)[:16]}"
        probe = folder / f"{_own()}.tmp"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise CacheError(
                f"the cache folder {folder} cannot be written ({error.strerror}): point LABKIT_CACHE to a folder of "
                "yours, or say cache=False"
            ) from error
        return cls(folder)

    def read(self, key: str) -> dict[str, np.ndarray] | None:
        """The result, or None when there is none; a damaged entry is removed with a warning."""
        path = self.folder / key
        try:
            data = path.read_bytes()
            if data[:32] != _checksum(key, data[32:]):
                raise ValueError("its checksum is wrong")
            row = np.load(io.BytesIO(data[32:]), allow_pickle=False)
            return {name: row[name] for name in row.dtype.names}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, EOFError) as error:
            warnings.warn(f"the cache entry {path} is damaged ({error}); it is computed again", stacklevel=2)
            if path.is_file():
                path.unlink(missing_ok=True)
            return None

    def write(self, key: str, result: dict[str, np.ndarray]) -> None:
        """Store a result: the entry is there as a whole or not at all. Raises OSError, e.g. on a full disk."""
        row = np.empty((), [(name, value.dtype, value.shape) for name, value in result.items()])
        for name, value in result.items():
            row[name] = value
        content = io.BytesIO()
        np.save(content, row, allow_pickle=False)
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
