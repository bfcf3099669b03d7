"""Configuration files are read once, and again after a change."""

import os
from pathlib import Path

import pytest
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.sources_registry import SourcesRegistry
from hydra.plugins.config_source import ConfigLoadError

from embodyflow.config.composition.compose import compose_config
from embodyflow.config.composition.config_source import ReadOnce


def test_a_changed_file_is_read_again_and_a_copy_may_be_changed(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("# @package _global_\nseed: 1\n")
    first = ReadOnce("main", f"once://{tmp_path}").load_config("mine")
    first.config.seed = 9
    assert ReadOnce("main", f"once://{tmp_path}").load_config("mine").config.seed == 1
    (tmp_path / "mine.yaml").write_text("seed: 2\n")
    os.utime(tmp_path / "mine.yaml", (1, 1))
    again = ReadOnce("main", f"once://{tmp_path}").load_config("mine")
    assert (again.config.seed, first.header["package"], again.header["package"]) == (2, "_global_", None)
    with pytest.raises(ConfigLoadError, match="not found"):
        ReadOnce("main", f"once://{tmp_path}").load_config("other")


def test_a_second_composition_of_the_same_files_reads_none(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["experiment=embodied", "algorithm=ppo"]
    compose_config(words)
    for source in (SourcesRegistry.instance().resolve("file"), FileConfigSource):  # Hydra imports its plugins again
        monkeypatch.setattr(source, "load_config", None)
    assert compose_config([*words, "trainer=fsdp", "seed=5"]).seed == 5  # what the tests cache is of other words
