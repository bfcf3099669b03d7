from types import ModuleType

import pytest
import smolvla_models


@pytest.fixture(params=[smolvla_models], ids=["SmolVLA"])
def models(request: pytest.FixtureRequest) -> ModuleType:
    """The policies that denoise with flow matching."""
    return request.param
