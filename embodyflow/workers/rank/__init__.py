"""What runs in the process of a rank: the worker, the nodes and groups that it runs, and their time limits."""
