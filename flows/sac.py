"""Off-policy training as a Prefect flow: SAC, TD3, CrossQ, RLPD, IQL and DSRL.

The papers are arXiv:1812.05905, arXiv:1802.09477, arXiv:1902.05605, arXiv:2302.02948, arXiv:2110.06169 and
arXiv:2506.15799.

With a server: ``prefect deployment run sac/pendulum``. Without one::

    python -m flows.sac experiment=pendulum iterations=50 seed=1 run_id=mine off_policy.batch_size=128
    python -m flows.sac experiment=push algorithm=rlpd
"""

from embodyflow.orchestration.training_flow import training_flow

sac = training_flow("sac", "Train a policy on replayed transitions, by SAC, TD3, CrossQ, RLPD, IQL or DSRL.")

if __name__ == "__main__":
    from embodyflow.orchestration.request.command_line import main

    main(sac)
