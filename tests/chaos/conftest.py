"""A module's job, disturbed and left in peace."""

import pytest
from disturbed import Disturbed, Outcome


@pytest.fixture(scope="module")
def disturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Disturbed:
    """Disturb runs of the module's ``JOB``."""
    job = request.module.JOB
    return Disturbed(tmp_path_factory.mktemp(f"{job}-chaos"), prefect_api, job)


@pytest.fixture(scope="module")
def undisturbed(disturbed: Disturbed) -> Outcome:
    disturbed.run("undisturbed")
    return disturbed.outcome("undisturbed")
