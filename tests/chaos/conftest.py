"""Runs of a module's job, with and without faults."""

import pytest
from faulty_runs import FaultyRuns, Outcome


@pytest.fixture(scope="module")
def faulty_runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, prefect_api: str
) -> FaultyRuns:
    """Runs of the module's ``JOB``."""
    job = request.module.JOB
    return FaultyRuns(tmp_path_factory.mktemp(f"{job}-chaos"), prefect_api, job)


@pytest.fixture(scope="module")
def undisturbed(faulty_runs: FaultyRuns) -> Outcome:
    """The outcome of a run without faults."""
    faulty_runs.run("undisturbed")
    return faulty_runs.outcome("undisturbed")
