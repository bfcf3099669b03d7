"""CPGD (arXiv:2505.12504) as a Prefect flow.

With a server: ``prefect deployment run cpgd/math``. Without one::

    python -m flows.cpgd experiment=math iterations=5 seed=1 run_id=mine trainer.epochs=2
"""

from embodyflow.orchestration.training_flow import training_flow

cpgd = training_flow("cpgd", "Train a policy by clipped policy gradient with policy drift.")

if __name__ == "__main__":
    from embodyflow.orchestration.request.command_line import main

    main(cpgd)
