"""Prefect settings for the local stack and for flows that run without a server."""

NO_TELEMETRY = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

# SQLite allows one writer. By default the server writes each event as it arrives, so flow runs meet a locked database
# and their client sleeps for two seconds each time. Batches avoid that (benchmarks/orchestration.py).
BATCHED_WRITES = {
    f"{prefix}_{name}": value
    for prefix in ("PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER", "PREFECT_SERVER_SERVICES_EVENT_PERSISTER")
    for name, value in {"BATCH_SIZE": "1000", "READ_BATCH_SIZE": "1000", "FLUSH_INTERVAL": "5"}.items()
}

STREAMED_LOGS = {f"PREFECT_SERVER_LOGS_STREAM_{name}_ENABLED": "true" for name in ("OUT", "PUBLISHING")}
"""Settings with which `prefect deployment run --watch` shows a run's log; by default it shows events alone."""

# A flow without a server starts one. On a busy machine with a new database that exceeds Prefect's default of 20 s.
STARTUP_TIMEOUT = {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120"}

MAX_RUNS = 4
"""How many times a flow run is run, the first one included. One that crashes every time needs a person."""
