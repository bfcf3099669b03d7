"""Groups that flow from rollout workers to the trainer one by one."""
