"""GRPO (Shao et al., 2024, arXiv:2402.03300) as a Prefect flow.

With a server: ``prefect deployment run grpo/embodied``. Without one::

    python -m flows.grpo experiment=embodied iterations=5 seed=1 run_id=mine trainer.epochs=2
"""

from typing import Any

from prefect import flow

from flows.request import Experiment, Iterations, Overrides, Resume, RunId, RunRequest, Seed, flow_run_name


@flow(name="grpo", flow_run_name=flow_run_name, persist_result=False)
async def grpo(
    experiment: Experiment = "embodied",
    iterations: Iterations = None,
    seed: Seed = None,
    run_id: RunId = None,
    resume: Resume = None,
    overrides: Overrides = (),
) -> dict[str, Any]:
    """Train a policy by group-relative policy optimisation; returns the run's summary."""
    from flows.training import train  # torch and Ray take seconds to import, and a mistake is to be told in one

    return await train(RunRequest(experiment, iterations, seed, run_id, resume, overrides, flow="grpo"))


if __name__ == "__main__":
    from flows.main import main

    main(grpo)
