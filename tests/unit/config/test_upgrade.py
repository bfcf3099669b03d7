import importlib

import pytest

from embodyflow.config.composition.upgrade import MOVED, upgrade


@pytest.mark.parametrize("module", [name for name in MOVED.values() if "libero" not in name])
def test_a_module_has_moved_to_one_that_exists(module: str) -> None:
    assert importlib.import_module(module)


def test_only_references_to_moved_modules_change() -> None:
    old = {
        "policy": {"tokenizer": "embodyflow.data.arithmetic:build_tokenizer", "path": "embodyflow.data.arithmetic"},
        "env": {"id": "envs:embodyflow/MetaWorld-v0", "adapter": {"wrappers": ["mine:Wrapper"]}},
        "seed": 3,
    }
    assert upgrade(old) == old | {
        "policy": {"tokenizer": "embodyflow.prompts.arithmetic:build_tokenizer", "path": "embodyflow.data.arithmetic"}
    }
