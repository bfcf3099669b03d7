"""SRPO (arXiv:2511.15605) as a Prefect flow.

With a server: ``prefect deployment run srpo/embodied``. Without one::

    python -m flows.srpo experiment=embodied iterations=5 seed=1 run_id=mine trainer.epochs=2
"""

from embodyflow.orchestration.training_flow import training_flow

srpo = training_flow("srpo", "Train a policy by self-referential policy optimisation.")

if __name__ == "__main__":
    from embodyflow.orchestration.request.command_line import main

    main(srpo)
