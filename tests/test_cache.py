import abc
import enum
import functools
import importlib
import io
import linecache
import os
import pickle
import subprocess
import sys
import typing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from labkit import cache, compute
from labkit.cache import Cache, CacheError, study_key, value_key
from labkit.diagonal.tasks import FULL, NONE


def define(source, **variables):
    """The function ``study`` that a notebook cell with this source makes."""
    define.cells += 1
    cell = f"<cell {define.cells}>"
    linecache.cache[cell] = (len(source), None, source.splitlines(keepends=True), cell)
    variables |= {"__name__": "__main__"}
    exec(compile(source, cell, "exec"), variables)
    return variables["study"]


define.cells = 0
STUDY = "def study(x, seed, scale=2):\n    return x * scale + seed\n"
HELPED = "def helper(x):\n    return x + {}\ndef study(x, seed):\n    return [helper(v) for v in (x, seed)]\n"
CLASS = (
    "class Net:\n    width = {}\n    def forward(self, x):\n        return {} * x\ndef study(x, seed): return Net()\n"
)
MAKER = "def maker(k):\n    def inner(x, seed):\n        return x * k\n    return inner\nstudy = maker({})\n"


# ---- keys


def test_the_same_study_has_the_same_key_wherever_it_stands():
    assert study_key(define(STUDY)) == study_key(define("\n\nimport math\n" + STUDY))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (STUDY, STUDY.replace("x * scale", "x + scale")),
        (STUDY, STUDY.replace("scale=2", "scale=3")),
        (STUDY, STUDY.replace("scale", "size")),
        (HELPED.format(1), HELPED.format(2)),
        (CLASS.format(1, 1), CLASS.format(2, 1)),
        (CLASS.format(1, 1), CLASS.format(1, 2)),
        (MAKER.format(1), MAKER.format(2)),
        ("k = 1\ndef study(x, seed): return k", "k = 1.5\ndef study(x, seed): return k"),
        ("k = 1\ndef study(x, seed): return [k for _ in x]", "k = 2\ndef study(x, seed): return [k for _ in x]"),
        ("k = {'a': [1]}\ndef study(x, seed): return k", "k = {'a': [2]}\ndef study(x, seed): return k"),
        ("import math as m\ndef study(x, seed): return m", "import cmath as m\ndef study(x, seed): return m"),
        ("from math import sin as f\ndef study(x): return f", "from math import cos as f\ndef study(x): return f"),
        (
            "import functools\n@functools.cache\ndef g(): return 1\ndef study(x, seed): return g()",
            "import functools\n@functools.cache\ndef g(): return 2\ndef study(x, seed): return g()",
        ),
        (
            "import torch\n@torch.no_grad()\ndef study(x, seed): return 1",
            "import torch\n@torch.no_grad()\ndef study(x, seed): return 2",
        ),
    ],
)
def test_whatever_changes_the_result_changes_the_key(one, other):
    assert study_key(define(one)) != study_key(define(other))
    assert study_key(define(one)) == study_key(define(one))


PLACES = {  # where code or a value can hide from a look at the study itself; ? is what differs
    "lambda made elsewhere": "study = elsewhere.call(lambda x: x + ?)",
    "decorated elsewhere": "@elsewhere.call\ndef study(x, seed): return x + ?",
    "helper decorated elsewhere": "@elsewhere.call\ndef g(x): return x + ?\ndef study(x, seed): return g(x)",
    "class attribute, list": "class C:\n    a = [?]\ndef study(x, seed): return C.a",
    "class attribute, dict": "class C:\n    a = {'b': (?,)}\ndef study(x, seed): return C.a",
    "class attribute, array": "class C:\n    a = np.array([?])\ndef study(x, seed): return C.a",
    "property": "class C:\n    @property\n    def a(self): return ?\ndef study(x, seed): return C().a",
    "cached property": "class C:\n    @functools.cached_property\n    def a(self): return ?\ndef study(x, seed): C().a",
    "cached method": "class C:\n    @functools.lru_cache\n    def a(self): return ?\ndef study(x, seed): C().a()",
    "static method": "class C:\n    @staticmethod\n    def a(): return ?\ndef study(x, seed): return C.a()",
    "nested class": "class C:\n    class D:\n        def a(self): return ?\ndef study(x, seed): return C.D().a()",
    "abstract class": "class B(abc.ABC):\n    def a(self): return ?\nclass C(B): pass\ndef study(x): return C().a()",
    "named tuple": "class C(typing.NamedTuple):\n    a: int = ?\ndef study(x, seed): return C().a",
    "enum": "class C(enum.Enum):\n    A = ?\ndef study(x, seed): return C.A",
    "dataclass default": "@dataclass\nclass C:\n    a: int = ?\ndef study(x, seed): return C().a",
    "dataclass factory": "@dataclass\nclass C:\n    a: list = field(default_factory=lambda: [?])\ndef study(x): C().a",
    "method of a global dataclass": "@dataclass\nclass C:\n    def a(self): return ?\nc = C()\ndef study(x): c.a()",
    "instance": "class C:\n    def __init__(self): self.a = ?\nc = C()\ndef study(x, seed): return c.a",
    "class of an instance": "class C:\n    def a(self): return ?\nc = C()\ndef study(x, seed): return c.a()",
    "bound method": "class C:\n    def a(self): return ?\nf = C().a\ndef study(x, seed): return f()",
    "vectorized": "@np.vectorize\ndef f(x): return x + ?\ndef study(x, seed): return f(x)",
    "partial": "f = functools.partial(lambda x, y: x + y, y=?)\ndef study(x, seed): return f(x)",
    "dispatched": "@functools.singledispatch\ndef f(x): 0\n@f.register\ndef _(x: int): return ?\ndef study(x): f(x)",
    "in a list": "fs = [lambda x: x + ?]\ndef study(x, seed): return fs[0](x)",
    "default": "def f(x): return x + ?\ndef study(x, seed, f=f): return f(x)",
    "function attribute": "def study(x, seed): return study.k\nstudy.k = ?",
    "class body in the study": "k = ?\ndef study(x, seed):\n    class C:\n        a = k\n    return C.a",
    "network": "net = torch.nn.Linear(1, 1)\ntorch.nn.init.constant_(net.weight, ?)\ntorch.nn.init.zeros_(net.bias)\n"
    "def study(x, seed): return net(x)",
    "class of networks": "class N(torch.nn.Module):\n    def forward(self, x): return x + ?\ndef study(x): N()(x)",
}
SCOPE = {"np": np, "torch": torch, "functools": functools, "typing": typing, "enum": enum, "abc": abc}
SCOPE |= {"dataclass": dataclass, "field": field}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module of this name and imports it, as a new process would."""
    monkeypatch.syspath_prepend(tmp_path)
    names = set()

    def write(name, text):
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()
        for part in names:
            sys.modules.pop(part, None)
        names.update((name, name.partition(".")[0]))
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        return importlib.import_module(name)

    yield write
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("place", PLACES)
def test_code_and_values_do_not_hide(module, place):
    elsewhere = module("elsewhere", "def call(f):\n    def inner(x, seed=0):\n        return f(x)\n    return inner\n")
    one, other, again = (define(PLACES[place].replace("?", k), elsewhere=elsewhere, **SCOPE) for k in "121")
    assert study_key(one) == study_key(again) != study_key(other)


@pytest.mark.parametrize("place", PLACES)
def test_in_a_module_the_whole_text_counts(module, place):
    head = "import abc, enum, functools, typing\nimport numpy as np, torch\nfrom dataclasses import dataclass, field\n"
    head += "class elsewhere:\n    def call(f): return lambda x, seed=0: f(x)\n"
    texts = [head + PLACES[place].replace("?", k) for k in "121"]
    one, other, again = [study_key(module("own", text).study) for text in texts]
    assert one == again != other


@pytest.mark.parametrize(
    "text",
    ["from own import far\ndef study(x): return far.f(x)", "from own.far import f\ndef study(x): return f(x)"]
    + ["import own.far\ndef study(x): return own.far.f(x)", "from .far import f\ndef study(x): return f(x)"]
    + [
        "def study(x):\n    from . import far\n    return far.f(x)",
        "def study(x):\n    import own.far\n    own.far.f(x)",
    ],
)
def test_so_does_the_text_of_what_it_imports(module, text):
    keys = []
    for k in "121":
        module("own.farther", f"K = {k}")
        module("own.far", "def f(x):\n    from own.farther import K\n    return x + K")
        keys.append(study_key(module("own.near", text).study))
    assert keys[0] == keys[2] != keys[1]


def test_what_is_imported_is_found_without_importing_it(module):
    module("own.__init__", "")
    for name in ("far", "farther"):
        (Path(sys.modules["own"].__file__).parent / f"{name}.py").write_text(
            "raise SystemExit\nfrom own import farther"
        )
    text = "def study(x):\n    if x: from own import far\n    import nowhere.at_all, own.no_module, json.nothing\n"
    assert study_key(module("near", text).study) and "own.far" not in sys.modules


@pytest.mark.parametrize("place", ["lib", "lib/far"])
def test_a_package_installed_in_a_folder_of_another_name_is_no_code_of_yours(module, tmp_path, monkeypatch, place):
    keys, folder = [], tmp_path / "lib"
    for k in "121":
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / ("far.py" if place == "lib" else "__init__.py")).write_text(f"K = {k}")
        monkeypatch.syspath_prepend(folder)
        sys.modules.pop("far", None)
        keys.append(study_key(module("own", "import far\ndef study(x): return x").study))
        cache._installs.cache_clear()
    assert keys[0] == keys[2] != keys[1]
    (folder / "far-1.0.dist-info").mkdir()
    assert study_key(sys.modules["own"].study) not in keys
    sys.modules.pop("far")


@pytest.mark.parametrize("read", ["far.K", "K"])
def test_what_a_module_holds_now_counts(module, read):
    far = module("far", "K = 1\ndef f(x): return x + K")
    study = define(f"from far import K\ndef study(x, seed): return {read}", far=far)
    first = study_key(study)
    far.K, study.__globals__["K"] = 2, 2
    assert study_key(study) != first


def test_a_module_that_was_edited_but_not_imported_again_has_a_key_of_its_own(module, tmp_path):
    old = module("own", "def f(x): return 1\ndef study(x): return f(x)").study
    (tmp_path / "own.py").write_text(text := "def f(x): return 2\ndef study(x): return f(x)")
    linecache.checkcache()
    assert study_key(old) != study_key(module("own", text).study)


def test_what_other_libraries_hold_under_a_name_counts_by_its_name():
    from scipy.special import expit

    used = {"expit": expit, "relu": torch.relu, "solve": torch.linalg.solve, "mean": np.mean, "log": np.log}
    for name, value in used.items():
        assert study_key(define(f"def study(x, seed): return {name}(x)", **{name: value}))


def test_what_cannot_be_looked_into_is_refused():
    for line in ("f = np.frompyfunc(lambda x: x, 1, 1)", "f = torch.Generator()", "f = object()"):
        with pytest.raises(TypeError, match="f, which study uses, is of type .*, which has no content"):
            study_key(define(f"{line}\ndef study(x, seed): return f", **SCOPE))


def test_a_logger_of_a_module_is_no_obstacle(module):
    assert study_key(module("own", "import logging\nlog = logging.getLogger('a')\ndef study(x): log.info(x)").study)


VALUE = "from dataclasses import dataclass\n@dataclass\nclass C:\n    a: int = 0\n    def f(self): return ?\n"


def test_the_class_of_an_argument_is_part_of_its_content(module):
    one, other, again = (value_key(module("own", VALUE.replace("?", k)).C()) for k in "121")
    assert one == again != other
    assert value_key(module("other", VALUE.replace("?", "1")).C()) != one
    assert value_key(Color.RED) != value_key(Color.BLUE) and value_key(Color.RED) != value_key("RED")


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def test_code_that_was_edited_but_not_imported_again_has_a_key_of_its_own():
    """Else the results of the old code would later be taken for those of the new."""
    old, new = define(STUDY), define(STUDY.replace("x * scale", "x + scale"))
    linecache.cache[old.__code__.co_filename] = linecache.cache[new.__code__.co_filename]
    assert study_key(old) != study_key(new)


def test_profile_device_and_labkit_are_part_of_the_key(monkeypatch):
    study = define(STUDY)
    keys = {study_key(study)}
    with compute.use_profile("quick"):
        keys.add(study_key(study))
    monkeypatch.setattr(compute, "device", lambda: torch.device("cuda"))
    keys.add(study_key(study))
    monkeypatch.setattr(cache, "_labkit_source", lambda: "0.2.0")
    keys.add(study_key(study))
    assert len(keys) == 4


def test_keys_are_the_same_in_every_process():
    """Python shuffles sets and hashes anew in each; running a function specializes its code."""
    program = (
        "from labkit.cache import study_key, value_key; from tests.test_cache import define\n"
        'study = define(\'s = {"a", "b", "c"}\\ndef study(x, seed): return x in s or x in {"d", "e", "f"}\')\n'
        "first = study_key(study); [study('a', 0) for _ in range(1000)]\n"
        "print(first, study_key(study), value_key({'u', 'v', 'w'}))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    (line,) = said
    before, after, _ = line.split()
    assert before == after


@dataclass(frozen=True)
class Pair:
    first: object
    second: object


DIFFERENT = [
    *(0, 0.0, False, None, "0", b"0", 1, float("nan"), -0.0, 1 + 0j, range(3), Path("0"), (), [], {}, set()),
    *((1, 2), (2, 1), [1, 2], {1, 2}, {"a": 1}, {"a": 2}, {"b": 1}, ((1,), 2), ("1, 2",)),
    *(np.zeros(2), np.zeros(3), np.zeros((2, 1)), np.zeros(2, np.float32), np.ones(2), np.float32(0)),
    *(torch.zeros(2), torch.zeros(2).double(), torch.zeros(2).bfloat16(), torch.ones(2), torch.tensor(0)),
    *(torch.float32, torch.float64, torch.device("cpu"), FULL, NONE, Pair(1, 2), Pair(2, 1), Pair(1, torch.ones(1))),
]


def test_arguments_of_other_content_have_other_keys():
    keys = [value_key(value) for value in DIFFERENT]
    assert len(set(keys)) == len(DIFFERENT)
    again = [value_key(pickle.loads(pickle.dumps(value))) for value in DIFFERENT]
    assert again == keys


def test_layout_in_memory_is_not_content():
    square = torch.arange(4.0).reshape(2, 2)
    assert value_key(square.T.contiguous()) == value_key(square.T)
    assert value_key(square.numpy().T.copy()) == value_key(square.numpy().T)


@pytest.mark.parametrize("value", [object(), torch.Generator(), lambda: 0, np.array([None]), torch.nn.Linear(1, 1)])
def test_an_argument_without_content_is_refused_by_name(value):
    with pytest.raises(TypeError, match=f"the argument x is of type {type(value).__name__}, which has no content"):
        value_key([1, value], "the argument x")


def test_a_variable_without_content_is_refused_by_name():
    study = define("def study(x, seed): return generator", generator=torch.Generator())
    with pytest.raises(TypeError, match="generator, which study uses, is of type Generator, which has no content"):
        study_key(study)


def test_a_function_whose_source_cannot_be_read_is_refused():
    variables = {"__name__": "__main__"}
    exec("def study(x, seed): return x", variables)
    with pytest.raises(ValueError, match="the source of study cannot be read, .* or say cache=False"):
        study_key(variables["study"])


@pytest.mark.parametrize("function", [len, np.sin, int, torch.nn.Identity(), "study"])
def test_what_is_no_function_of_python_is_refused(function):
    with pytest.raises(TypeError, match="function must be one made by def, got"):
        study_key(function)


def test_display_is_not_part_of_labkit_that_results_depend_on():
    root = Path(cache.__file__).parent
    assert all((root / name).exists() for name in cache.DISPLAY)


# ---- entries


@pytest.fixture
def entries(tmp_path):
    return Cache.open(define(STUDY), tmp_path)


RESULTS = [
    {"value": np.array(0.1)},
    {"error": np.array([np.nan, -np.inf, 5e-324]), "steps": np.array(3), "name": np.array("ü"), "ok": np.array(True)},
    {"z": np.array([[1 + 2j]], np.complex64), "file": np.zeros((2, 0)), "a b": np.arange(3, dtype=np.int8)},
]


@pytest.mark.parametrize("result", RESULTS)
def test_what_is_read_is_what_was_written(entries, result):
    entries.write("key", result)
    read = entries.read("key")
    assert list(read) == list(result)
    for name, value in result.items():
        assert read[name].dtype == value.dtype
        np.testing.assert_array_equal(read[name], value, strict=True)
    assert entries.read("other") is None
    assert [path.name for path in entries.folder.iterdir()] == ["key"]


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


def signed(data):
    """What passes for an entry of ``key``: even then nothing may be executed."""
    return cache._checksum("key", data) + data


def object_array(bomb):
    file = io.BytesIO()
    np.save(file, np.array([bomb], dtype=object), allow_pickle=True)
    return file.getvalue()


DAMAGE = {
    "empty": lambda good, bomb: b"",
    "truncated in the checksum": lambda good, bomb: good[:20],
    "truncated in the data": lambda good, bomb: good[:-1],
    "longer": lambda good, bomb: good + b"\0",
    "text": lambda good, bomb: b"<html>not found</html>",
    "a pickle": lambda good, bomb: pickle.dumps(bomb),
    "a signed pickle": lambda good, bomb: signed(pickle.dumps(bomb)),
    "a signed array of objects": lambda good, bomb: signed(object_array(bomb)),
    "signed nothing": lambda good, bomb: signed(b""),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_removed_with_a_warning_and_never_executed(entries, tmp_path, damage):
    entries.write("key", {"value": np.array(0.1)})
    path, bomb = entries.folder / "key", Bomb(tmp_path / "exploded")
    path.write_bytes(DAMAGE[damage](path.read_bytes(), bomb))
    with pytest.warns(UserWarning, match="the cache entry .*key is damaged .*computed again"):
        assert entries.read("key") is None
    assert not path.exists() and not bomb.target.exists()
    assert entries.read("key") is None  # now without a warning


def test_every_flipped_bit_is_noticed(entries):
    entries.write("key", {"value": np.array(0.1)})
    path = entries.folder / "key"
    good = path.read_bytes()
    for position in range(len(good)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 1 << position % 8]) + good[position + 1 :])
        with pytest.warns(UserWarning, match="damaged"):
            assert entries.read("key") is None


def test_an_intact_entry_of_another_call_is_foreign(entries):
    entries.write("key", {"value": np.array(0.1)})
    (entries.folder / "key").rename(entries.folder / "other")
    with pytest.warns(UserWarning, match="its checksum is wrong"):
        assert entries.read("other") is None


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), PermissionError(13, "Permission denied")])
def test_an_entry_that_cannot_be_read_now_is_kept(entries, monkeypatch, error):
    def refuse(path):
        raise error

    entries.write("key", {"value": np.array(0.1)})
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="cannot be read .*; it is computed again"):
        patch.setattr(Path, "read_bytes", refuse)
        assert entries.read("key") is None
    assert entries.read("key") == {"value": 0.1}


def test_a_folder_in_place_of_an_entry_is_a_warning(entries):
    (entries.folder / "key").mkdir()
    with pytest.warns(UserWarning, match="cannot be read"):
        assert entries.read("key") is None


def test_a_failed_write_leaves_nothing(entries, monkeypatch):
    def full(path, data):
        path.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        entries.write("key", {"value": np.array(0.1)})
    assert not list(entries.folder.iterdir())


def test_a_claim_is_held_by_one_until_it_is_released(entries):
    assert entries.claim("key") and not entries.claim("key") and entries.claim("other")
    entries.release("key")
    assert entries.claim("key")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CacheError, match=r"cache folder .* cannot be written \(Not a directory\): point LABKIT_CACHE"):
        Cache.open(define(STUDY), tmp_path / "file")


def test_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
    def refuse(path):  # root, who may run the tests, may write everywhere
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(CacheError, match=r"cannot be written \(Permission denied\)"):
        Cache.open(define(STUDY), tmp_path)


def test_home_is_a_folder_of_the_user_or_the_one_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("LABKIT_CACHE", "~/here")
    assert cache.home() == Path.home() / "here"
    monkeypatch.setenv("LABKIT_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where there is such a thing
    assert cache.home().name.lower() == "labkit" or "labkit" in cache.home().parts
