"""What holds for Prefect wherever we use it: in the local stack, and in a flow without a server."""

NO_TELEMETRY = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

# SQLite allows one writer. As it comes, the server writes each event as it arrives, flow runs meet a locked database
# and their client sleeps two seconds at a time; written in batches, an iteration of seven tasks takes 0.13 s, not 2.1.
BATCHED_WRITES = {
    f"{prefix}_{name}": value
    for prefix in ("PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER", "PREFECT_SERVER_SERVICES_EVENT_PERSISTER")
    for name, value in {"BATCH_SIZE": "1000", "READ_BATCH_SIZE": "1000", "FLUSH_INTERVAL": "5"}.items()
}

# A flow without a server starts one for itself; on a busy machine with a new database that takes longer than 20 s.
PATIENCE = {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120"}

MAX_RUNS = 4
"""How often a flow run is run in all, the first time counted: what crashes every time is not for us to mend."""
