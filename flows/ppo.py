"""PPO (Schulman et al., 2017, arXiv:1707.06347) as a Prefect flow.

With a server: ``prefect deployment run ppo/embodied``. Without one::

    python -m flows.ppo experiment=embodied iterations=5 seed=1 run_id=mine trainer.epochs=2
"""

from embodyflow.orchestration.training_flow import training_flow

ppo = training_flow("ppo", "Train a policy by proximal policy optimisation with a critic.")

if __name__ == "__main__":
    from embodyflow.orchestration.request.command_line import main

    main(ppo)
