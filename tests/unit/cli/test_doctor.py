import importlib.metadata

import pytest

from embodyflow.cli import doctor


def test_a_version_that_breaks_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"sqlalchemy": "2.1.0", "mujoco": "3.8.1", "torch": "2.13.0+cpu"}

    def version(package: str) -> str:
        if package not in installed:
            raise importlib.metadata.PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    expected = "sqlalchemy 2.1.0: Prefect's scheduler stops silently; pip install 'sqlalchemy<2.1'"
    assert doctor.versions() == expected
    installed["sqlalchemy"] = "2.0.58"
    assert doctor.versions() == "no version that is known to break"


def test_a_back_end_that_fails_to_render_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_RENDER", "raise SystemExit(1)")
    assert doctor._rendering().startswith("does not work, so no videos")


def test_the_number_of_environments_follows_from_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_MEMORY", f"print([{100 * 2**20}, {20 * 2**20}])")
    monkeypatch.setattr(doctor, "num_cores", lambda: 2)
    said = doctor._environment_capacity("Meta-World", free=2 * 500 * 2**20)
    assert said == "100 MiB for a process with one, 20 MiB for each more: 21 fit with one process per core"
    monkeypatch.setattr(doctor, "_MEMORY", "raise FileNotFoundError('no assets')")
    assert doctor._environment_capacity("LIBERO", free=2**30) == "not available: FileNotFoundError: no assets"
