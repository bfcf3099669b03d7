"""GRPO (Shao et al., 2024, arXiv:2402.03300) as a Prefect flow.

With a server: ``prefect deployment run grpo/embodied``. Without one::

    python -m flows.grpo experiment=embodied iterations=5 seed=1 run_id=mine trainer.epochs=2
"""

from embodyflow.orchestration.training_flow import training_flow

grpo = training_flow("grpo", "Train a policy by group-relative policy optimisation.")

if __name__ == "__main__":
    from embodyflow.orchestration.request.command_line import main

    main(grpo)
