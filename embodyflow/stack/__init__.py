"""The local stack: Ray, Prefect server and Prefect worker, started and stopped as one."""
