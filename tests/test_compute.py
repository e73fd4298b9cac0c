import sys
from importlib import metadata

import pytest
import torch

from labkit import compute
from labkit.compute import check_environment, device, diagnose, dtype, generator, pick, profile, use_profile


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch):
    """Every test starts as a new session does: no environment variable, no profile chosen."""
    monkeypatch.delenv("LABKIT_DEVICE", raising=False)
    monkeypatch.delenv("LABKIT_PROFILE", raising=False)
    monkeypatch.setattr(compute, "_chosen_profile", None)


def test_device_is_cuda_exactly_when_there_is_one(monkeypatch):
    for there in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert device() == torch.device("cuda" if there else "cpu")


def test_device_follows_the_environment(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LABKIT_DEVICE", "cpu")
    assert device() == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:77", "xla"])
def test_device_that_is_not_there_is_refused_by_name(monkeypatch, name):
    monkeypatch.setenv("LABKIT_DEVICE", name)
    with pytest.raises(ValueError, match=f"LABKIT_DEVICE must name a device of this computer.* got '{name}'"):
        device()


def test_dtype_is_double_where_there_is_double():
    assert dtype() == dtype("cpu") == dtype(torch.device("cuda")) == torch.float64
    assert dtype("mps") == torch.float32


def test_generator_lives_on_the_cpu_also_under_another_default_device():
    with torch.device("meta"):
        made = generator(3)
    assert made.device.type == "cpu" and made.initial_seed() == 3


def test_generators_with_other_seeds_give_other_numbers():
    first, second = (torch.rand(8, generator=generator(seed)) for seed in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("seed", [1.0, "1", True, None])
def test_generator_refuses_a_seed_that_is_no_integer(seed):
    with pytest.raises(TypeError, match="seed must be an integer, got"):
        generator(seed)


def test_profile_comes_from_the_environment_until_one_is_chosen(monkeypatch):
    assert profile() == "standard"
    monkeypatch.setenv("LABKIT_PROFILE", "full")
    assert profile() == "full"
    use_profile("quick")
    assert profile() == "quick"


def test_use_profile_as_a_context_restores_what_was_there_also_after_an_error():
    use_profile("full")
    with pytest.raises(ZeroDivisionError), use_profile("quick"):
        assert profile() == "quick"
        raise ZeroDivisionError
    assert profile() == "full"


def test_use_profile_nests():
    with use_profile("quick"), use_profile("full"):
        assert profile() == "full"
    assert profile() == "standard"


def test_a_wrong_profile_is_refused_and_changes_nothing(monkeypatch):
    with pytest.raises(ValueError, match="profile must be one of quick, standard, full, got 'fast'"):
        use_profile("fast")
    assert profile() == "standard"
    monkeypatch.setenv("LABKIT_PROFILE", "Quick")
    with pytest.raises(ValueError, match="LABKIT_PROFILE must be one of quick, standard, full, got 'Quick'"):
        profile()


@pytest.mark.parametrize(("name", "size"), [("quick", 1), ("standard", 2), ("full", 3)])
def test_pick_gives_the_size_of_the_profile(name, size):
    with use_profile(name):
        assert pick(quick=1, standard=2, full=3) == size


# ---- check_environment: one line when all is well, one instruction when it is not


def versions(monkeypatch, **changed):
    """As if other versions were installed; None: not installed. Underscores stand for what pip spells with them."""
    real = metadata.version

    def version(name):
        if name in changed and changed[name] is None:
            raise metadata.PackageNotFoundError(name)
        return changed.get(name) or real(name)

    monkeypatch.setattr(compute.metadata, "version", version)


def said(capsys):
    check_environment()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_all_well_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("LABKIT_DEVICE", "cpu")
    release = torch.__version__.split("+")[0]
    assert said(capsys) == f"labkit 0.1.0 · torch {release} · cpu, float64 · profile standard · ready"


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("ipywidgets", "7.8.1", 'ipywidgets 7.8.1 does not fit: type  %pip install "ipywidgets>=8.1,<9"'),
        ("ipywidgets", None, 'ipywidgets is missing: type  %pip install "ipywidgets>=8.1,<9"'),
        ("jupyterlab_widgets", "1.1.4", "jupyterlab_widgets 1.1.4 does not fit"),
        ("jupyterlab", "3.6.7", "jupyterlab 3.6.7 does not fit"),
        ("torch", "2.5.1+cu121", "torch 2.5.1+cu121 does not fit"),
        ("matplotlib", "4.0.0rc1", "matplotlib 4.0.0rc1 does not fit"),
        ("labkit", "0.0.9", "labkit 0.1.0 was installed as 0.0.9"),
    ],
)
def test_what_is_wrong_is_one_instruction(monkeypatch, capsys, name, version, words):
    versions(monkeypatch, **{name: version})
    line = said(capsys)
    assert line.startswith("Not ready yet. ") and words in line


@pytest.mark.parametrize("version", ["2.6", "2.6.0", "2.13.0+cpu", "2.99.1.dev20260101"])
def test_versions_inside_the_range_are_accepted(monkeypatch, version):
    versions(monkeypatch, torch=version)
    assert all(finding.ok for finding in diagnose())


def test_the_most_basic_problem_comes_first(monkeypatch, capsys):
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    versions(monkeypatch, scipy=None)
    assert "Python 3.10.4: install Python 3.11 or newer" in said(capsys)


@pytest.mark.parametrize("variable", ["LABKIT_DEVICE", "LABKIT_PROFILE"])
def test_a_wrong_setting_is_an_instruction_too(monkeypatch, capsys, variable):
    monkeypatch.setenv(variable, "nonsense")
    assert f"{variable} is wrong" in said(capsys)


def test_a_torch_that_does_not_load_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)  # makes `import torch` fail
    assert "import torch fails" in said(capsys)


def test_a_missing_torch_is_named(monkeypatch, capsys):
    versions(monkeypatch, torch=None)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch is missing" in said(capsys)
