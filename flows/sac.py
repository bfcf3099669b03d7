"""Soft actor-critic (Haarnoja et al., 2018, arXiv:1812.05905) as a Prefect flow.

With a server: ``prefect deployment run sac/pendulum``. Without one::

    python -m flows.sac experiment=pendulum iterations=50 seed=1 run_id=mine off_policy.batch_size=128
"""

from embodyflow.orchestration.training_flow import training_flow

sac = training_flow("sac", "Train a policy for continuous control by soft actor-critic on replayed transitions.")

if __name__ == "__main__":
    from embodyflow.orchestration.request.command_line import main

    main(sac)
