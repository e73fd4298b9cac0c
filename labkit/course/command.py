"""The command ``labkit``, from any folder inside the clone.

labkit lab [NN] [options of jupyter lab]   open JupyterLab on lesson NN (on the first when none is given)
labkit build                               make lessons/ anew from solutions/
labkit build --check                       only say what is out of date or breaks a rule
labkit sweep [NAME [--profile full] [--device cuda] [--batch 64]]  make a result anew, in place of the old one, or list
labkit data [fetch NAME ...]               download data sets (cifar10, cifar100, svhn), or list them
labkit doctor                              look at everything the course needs and say what is missing
labkit picture                             make the picture of README.md anew
"""

import argparse
import ast
import os
import sys
from pathlib import Path

import labkit


class Refusal(Exception):
    """Something the command cannot do; its text is the one sentence that the person gets to read."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code: 0 well, 1 not well, 2 (by argparse) not understood."""
    parser = argparse.ArgumentParser(
        prog="labkit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="lab | build | sweep | data | doctor | picture")
    lab = commands.add_parser("lab", help="open JupyterLab on a lesson")
    lab.add_argument("lesson", nargs="?", default="00", help="its number, such as 02")
    lab.set_defaults(run=_lab)
    build = commands.add_parser("build", help="make lessons/ anew from solutions/")
    build.add_argument("--check", action="store_true", help="change nothing, say what is out of date")
    build.set_defaults(run=_build)
    sweep = commands.add_parser("sweep", help="make a shipped result anew")
    sweep.add_argument("name", nargs="?", help="such as recovery_by_scale; none: list what there is")
    sweep.add_argument("--profile", help="quick, standard or full (default: LABKIT_PROFILE, else standard)")
    sweep.add_argument("--device", help="such as cuda (default: LABKIT_DEVICE, else cuda where there is one)")
    sweep.add_argument("--batch", help="of image_transfer: images a step (default: LABKIT_BATCH, else its own)")
    sweep.set_defaults(run=_sweep)
    data = commands.add_parser("data", help="download data sets, or list them")
    data.add_argument("action", nargs="?", choices=("list", "fetch"), default="list", help="list, by default")
    data.add_argument("names", nargs="*", metavar="NAME", help="cifar10, cifar100 or svhn")
    data.set_defaults(run=_data)
    commands.add_parser("doctor", help="say what is missing").set_defaults(run=_doctor)
    commands.add_parser("picture", help="make the picture of README.md anew").set_defaults(run=_picture)

    options, rest = parser.parse_known_args(arguments)
    if rest and options.run is not _lab:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return options.run(options, rest)
    except (Refusal, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:  # a read-only folder, a full disk
        print(f"{error.strerror or error}: {error.filename or 'unknown file'}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        print("stopped", *getattr(stop, "__notes__", ()), sep="; ", file=sys.stderr)
        return 130


def clone(needed: str = "lessons") -> Path:
    """The folder of the course: the first around the current one with ``labkit`` and the needed folder."""
    here = Path.cwd()
    for folder in (here, *here.parents, Path(labkit.__file__).parents[1]):
        if (folder / "labkit").is_dir() and (folder / needed).is_dir():
            return folder
    raise Refusal(f"No folder {needed}/ around {here}: go into the clone of the course and try again.")


def _lab(options: argparse.Namespace, rest: list[str]) -> int:
    root = clone()
    found = sorted((root / "lessons").glob(f"{options.lesson.zfill(2)}_*.ipynb"))
    if not found:
        there = ", ".join(path.name[:2] for path in sorted((root / "lessons").glob("*.ipynb")))
        raise Refusal(f"There is no lesson {options.lesson}, only {there or 'an empty folder lessons/'}.")
    from jupyterlab.labapp import LabApp

    os.chdir(root)  # nbgrader's extension complains about any other place
    # Jupyter reads this folder first: it switches off the question about news from the internet.
    paths = [str(Path(__file__).parent / "jupyter"), os.environ.get("JUPYTER_CONFIG_PATH", "")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, paths))
    # Programs of this environment (nbgrader calls one by name) are found also when it is not activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    LabApp.launch_instance(
        [
            f"--ServerApp.root_dir={root}",
            f"--LabApp.default_url=/lab/tree/lessons/{found[0].name}",
            "--LabApp.news_url=None",
            "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
            "--log-level=WARN",
            *(["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []),
            *rest,
        ]
    )
    return 0


def _build(options: argparse.Namespace, rest: list[str]) -> int:
    from labkit.course.build import build, drift, masters
    from labkit.course.lint import lint

    root = clone("solutions")
    solutions, lessons = root / "solutions", root / "lessons"
    problems = [f"solutions/{path.name}: {problem}" for path in masters(solutions) for problem in lint(path)]
    if options.check:
        differences = drift(solutions, lessons)
        print(*differences, *problems, sep="\n", file=sys.stderr, end="\n" if differences or problems else "")
        if differences:
            print("Edit solutions/, never lessons/; then type  make lessons", file=sys.stderr)
        return int(bool(differences or problems))
    for path in build(solutions, lessons):
        print(f"made {path.relative_to(root)}" if path.parent == lessons else f"kept your {path.relative_to(root)}")
    print(*problems, sep="\n", file=sys.stderr, end="\n" if problems else "")
    return int(bool(problems))


def _sweep(options: argparse.Namespace, rest: list[str]) -> int:
    from labkit import compute, results
    from labkit.cache import CacheError
    from labkit.data.download import DataError

    if not options.name:
        print(*results.RECIPES, *results.LONG, sep="\n")
        return 0
    if options.device:
        os.environ["LABKIT_DEVICE"] = options.device
    if options.batch:
        if options.name not in results.LONG:
            raise Refusal(f"--batch is for {', '.join(results.LONG)}.")
        os.environ["LABKIT_BATCH"] = options.batch
    with compute.use_profile(options.profile or compute.profile()):
        try:
            path = results.remake(options.name)
        except (CacheError, DataError, MemoryError) as error:
            raise Refusal(error) from None
        print(f"made {path} ({path.stat().st_size / 1024:.0f} kB): profile {compute.profile()}, {compute.device()}")
    return 0


def _data(options: argparse.Namespace, rest: list[str]) -> int:
    from labkit.data import download

    if options.action == "fetch" and not options.names:
        raise Refusal(f"Which data set? One or more of {', '.join(download.FILES)}.")
    for name in options.names:
        download.require_name(name)
    failed = []  # a server of another data set may well be there
    try:
        place = download.folder()
        for name in options.names if options.action == "fetch" else ():
            try:
                print(*download.fetch(name), sep="\n")
            except download.DataError as error:
                failed.append(str(error))
    except download.DataError as error:
        raise Refusal(error) from None
    if failed:
        raise Refusal("\n".join(failed))
    if options.action == "list":
        for name, files in download.FILES.items():
            state = "there" if download.there(name) else f"labkit data fetch {name}"
            print(f"{name:<9} {sum(file.megabytes for file in files):4} MB  {state}")
        print(f"in {place}")
    return 0


def _doctor(options: argparse.Namespace, rest: list[str]) -> int:
    from labkit.compute import diagnose

    findings = diagnose()
    for finding in findings:
        print("ok " if finding.ok else "NO ", finding)
    return int(not all(finding.ok for finding in findings))


def _picture(options: argparse.Namespace, rest: list[str]) -> int:
    root = clone("solutions")
    master = next((root / "solutions").glob("02_*.ipynb"), None)
    if master is None:
        raise Refusal("The picture shows lesson 02, and solutions/ has none.")
    target = root / "docs" / "lesson_02.png"
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(first_panel(master).png)
    print(f"made {target.relative_to(root)}")
    return 0


def first_panel(master: Path) -> "labkit.Panel":
    """Run the code cells of a master here, up to the first that makes a panel, and return the panel."""
    from labkit.course.build import read
    from labkit.panel import Panel

    names: dict = {"__name__": "__main__"}
    for cell in read(master).cells:
        if cell.cell_type != "code":
            continue
        statements = ast.parse(cell.source).body
        last = statements.pop() if statements and isinstance(statements[-1], ast.Expr) else None
        exec(compile(ast.Module(statements, []), master.name, "exec"), names)
        shown = eval(compile(ast.Expression(last.value), master.name, "eval"), names) if last else None
        for value in (shown, *names.values()):
            if isinstance(value, Panel):
                return value
    raise Refusal(f"{master.name} makes no panel.")


if __name__ == "__main__":
    sys.exit(main())
