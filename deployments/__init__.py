"""How an experiment is run on a machine: the local stack, the command line, the Prefect deployments."""
