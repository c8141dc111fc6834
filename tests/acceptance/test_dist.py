"""What `make dist` builds, as a user gets it: installed into an empty environment, without any extra."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import detent
from pages import blocks_of

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
KINDS = ("wheel", "sdist")

pytestmark = pytest.mark.xdist_group("dist")  # one process builds, for all of them


def run(*command: str | Path, folder: Path) -> str:
    """Run a command as on a machine that knows nothing of this checkout; answers what it printed."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "DETENT_"))
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(source: Path, kind: str, folder: Path) -> Path:
    """Build one archive with the build back end of this environment; fetches nothing."""
    run(UV, "build", "--offline", "--no-build-isolation", "--python", sys.executable, f"--{kind}", "--out-dir", folder,
        source, folder=folder)  # fmt: skip
    (archive,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheels(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of the checkout, and the one that an installer builds from the sdist."""
    sources = {"wheel": ROOT, "sdist": sdist}
    return {kind: build(sources[kind], "wheel", tmp_path_factory.mktemp("wheel")) for kind in KINDS}


def needs_of(installed: Distribution, extras: set[str]) -> Iterator[Requirement]:
    for text in installed.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras | {""}):
            yield requirement


def link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # on another file system, or of another user
        shutil.copy2(source, target)


def link_dependencies(site: Path) -> None:
    """Bring what Detent says it needs, and what that needs, from this environment, which has the lock's versions."""
    (installed,) = distributions(name="detent", path=[str(site)])
    wanted = list(needs_of(installed, set()))
    linked: set[str] = set()
    while wanted:
        requirement = wanted.pop()
        found = distribution(requirement.name)
        if found.name in linked:
            continue
        linked.add(found.name)
        wanted += needs_of(found, requirement.extras)
        for file in found.files or ():
            if ".." not in file.parts:  # commands of other packages
                link(Path(str(file.locate())), site / file)


@pytest.fixture(scope="module", params=KINDS)
def empty(request: pytest.FixtureRequest, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of a new environment that has Detent and its core dependencies, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    commands = folder / "bin"
    run(UV, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", commands / "python",
        wheels[request.param], folder=folder)  # fmt: skip
    (site,) = folder.glob("lib/python*/site-packages")
    link_dependencies(site)
    run(UV, "pip", "check", "--python", commands / "python", folder=folder)
    return commands


def test_first_example_of_readme_runs_with_core_dependencies(empty: Path, tmp_path: Path) -> None:
    example = next(block.text for block in blocks_of(ROOT / "README.md") if block.language == "python")
    named = re.match(r"# (\w+\.py)\b", example)
    program = tmp_path / (named[1] if named else "example.py")
    program.write_text(example)
    run(empty / "python", program.name, folder=tmp_path)
    home = run(empty / "python", "-c", "import detent; print(detent.__file__)", folder=tmp_path)
    assert Path(home.strip()).is_relative_to(empty.parent)


def test_command_runs_with_core_dependencies(empty: Path, tmp_path: Path) -> None:
    version = run(empty / "detent", "--version", folder=tmp_path)
    assert detent.__version__ in version
    assert run(empty / "python", "-m", "detent", "--version", folder=tmp_path) == version
    assert "queue" in run(empty / "detent", "--help", folder=tmp_path)


def contents(wheel: Path) -> dict[str, int]:
    with zipfile.ZipFile(wheel) as archive:
        return {entry.filename: entry.CRC for entry in archive.infolist()}


def test_wheel_built_from_sdist_is_that_of_checkout(wheels: dict[str, Path]) -> None:
    assert contents(wheels["sdist"]) == contents(wheels["wheel"])


def test_wheel_holds_every_source_and_the_license(wheels: dict[str, Path]) -> None:
    source = ROOT / "src"
    sources = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.parent.name.endswith(".egg-info")
    }
    info = f"detent-{detent.__version__}.dist-info"
    metadata = {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt")}
    licenses = {f"{info}/licenses/{name}" for name in ("LICENSE", "NOTICE")}
    assert contents(wheels["wheel"]).keys() == sources | metadata | licenses


def test_sdist_holds_sources_tests_and_documents_only(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {Path(*Path(name).parts[1:]) for name in archive.getnames()}
    assert {name.parts[0] for name in names} == {
        ".gitignore", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "NOTICE",
        "PKG-INFO", "README.md", "SECURITY.md", "bench", "deploy", "docs", "examples", "pyproject.toml",
        "requirements.lock", "src", "tests",
    }  # fmt: skip
    assert Path("tests/acceptance/test_dist.py") in names
    assert not [name for name in names if name.is_relative_to("bench/results") or "__pycache__" in name.parts]
