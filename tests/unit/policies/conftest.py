from types import ModuleType

import pi0_models
import pi05_models
import pytest
import smolvla_models


@pytest.fixture(params=[smolvla_models, pi0_models, pi05_models], ids=["SmolVLA", "π0", "π0.5"])
def models(request: pytest.FixtureRequest) -> ModuleType:
    """Each policy that denoises by flow matching."""
    return request.param
