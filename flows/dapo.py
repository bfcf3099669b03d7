"""DAPO (Yu et al., 2025, arXiv:2503.14476) as a Prefect flow.

With a server: ``prefect deployment run dapo/embodied``. Without one::

    python -m flows.dapo experiment=embodied iterations=5 seed=1 run_id=mine trainer.epochs=2
"""

from embodyflow.orchestration.training_flow import training_flow

dapo = training_flow("dapo", "Train a policy by GRPO with dynamic sampling.")

if __name__ == "__main__":
    from embodyflow.orchestration.request.command_line import main

    main(dapo)
