"""GSPO (arXiv:2507.18071) as a Prefect flow.

With a server: ``prefect deployment run gspo/math``. Without one::

    python -m flows.gspo experiment=math iterations=5 seed=1 run_id=mine trainer.epochs=2
"""

from embodyflow.orchestration.training_flow import training_flow

gspo = training_flow("gspo", "Train a policy by group sequence policy optimisation.")

if __name__ == "__main__":
    from embodyflow.orchestration.request.command_line import main

    main(gspo)
