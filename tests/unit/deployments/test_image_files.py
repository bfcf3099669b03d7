"""The Dockerfile and what it copies."""

import re
import subprocess
import tomllib

import pytest
from deployment_files import DEPLOYMENTS, ROOT, check_command, is_pinned

from embodyflow import __version__

TEXT = (DEPLOYMENTS / "images" / "Dockerfile").read_text()
STEPS = [
    line.split(maxsplit=1)
    for line in TEXT.replace("\\\n", " ").splitlines()
    if line.strip() and not line.startswith("#")
]
ALLOWED = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def steps(instruction: str) -> list[str]:
    return [words for name, words in STEPS if name == instruction]


def argument(name: str) -> str:
    [value] = [each.partition("=")[2] for each in steps("ARG") if each.startswith(f"{name}=")]
    return value


def test_the_image_is_pinned_and_has_a_python_that_the_project_supports() -> None:
    tag = argument("PYTHON")
    assert is_pinned(f"python:{tag}")
    minor = re.match(r"3\.(\d+)\.\d+-slim", tag)
    assert minor is not None and PROJECT["project"]["requires-python"] == ">=3.11,<3.13" and minor[1] in ("11", "12")
    stages = [words.partition(" AS ")[2] for words in steps("FROM")]
    assert [words.split()[0] for words in steps("FROM")] == ["python:${PYTHON}", "base", "base"]
    assert stages == ["base", "packages", ""]


def test_it_runs_as_a_user_who_is_not_root_and_has_no_entrypoint() -> None:
    assert steps("USER") == ["1000:1000"]
    assert STEPS[-2][0] == "USER", "no step after it needs root"
    assert not steps("HEALTHCHECK") and not steps("ENTRYPOINT"), "Kubernetes and Compose have their own"
    [command] = steps("CMD")
    check_command([word.strip('" ') for word in command.strip("[]").split(",")])


def test_all_that_it_copies_exists_and_is_in_the_build_context() -> None:
    assert all((ROOT / path).exists() for path in ALLOWED), ALLOWED
    copied = [word for words in steps("COPY") if "--from" not in words for word in words.split()[:-1]]
    assert "." in copied
    for path in copied:
        assert path == "." or path in ALLOWED or path.split("/")[0] in ALLOWED, path
    rooms = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert rooms.keys() | {"embodyflow"} - {"deployments"} <= ALLOWED | {"deployments"}
    [made] = [words for words in steps("RUN") if words.startswith("mkdir")]
    assert set(made.split()[1:]) == rooms.keys(), "the editable install needs each of them"


def test_make_installs_the_packages_by_the_constraints() -> None:
    [installing] = [words for words in steps("RUN") if "make install" in words]
    assert set(re.findall(r"(\w+)=\$\{\1\}", installing)) == {"EXTRAS", "TORCH_BACKEND"}
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(argument("EXTRAS").split(",")) <= extras.keys()


def test_make_finds_in_the_image_what_was_installed_there() -> None:
    """Nobody but root may install: ``make run`` needs the image's extras, and a mark newer than pyproject.toml."""
    assert any(words.startswith("EXTRAS=${EXTRAS}") for words in steps("ENV"))
    last = STEPS[max(place for place, (name, _) in enumerate(STEPS) if name == "COPY") :]
    assert any(name == "RUN" and "touch .venv/installed-${EXTRAS}" in words for name, words in last)


@pytest.mark.parametrize(
    ("backend", "expected", "unexpected"),
    [("cpu", "--override overrides-cpu.txt", "torch!="), ("cu130", "'torch!=2.13.0+cpu'", "overrides-cpu.txt")],
)
def test_the_backend_chooses_the_build_of_torch(backend: str, expected: str, unexpected: str) -> None:
    words = ["make", "-n", "install", f"TORCH_BACKEND={backend}", "INSTALLED=nothing"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    [line] = [line for line in done.stdout.splitlines() if "uv pip install" in line]
    assert "-c constraints.txt" in line and expected in line and unexpected not in line


def test_the_comment_names_the_version_of_the_package() -> None:
    assert set(re.findall(r"-t embodyflow:(\d+\.\d+\.\d+)", TEXT)) == {__version__}
