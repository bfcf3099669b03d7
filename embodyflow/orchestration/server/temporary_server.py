"""The Prefect server of a flow that runs from the command line, if the settings name none.

Prefect would start one itself, without a password and for every host name. Ours answers only to a secret that no file
and no process but the server and this one hold.
"""

import asyncio
import atexit
import os
import subprocess
import time

import httpx
from prefect import get_client
from prefect.context import refresh_global_settings_context
from prefect.settings import get_current_settings

from embodyflow.errors import ConfigError, InfrastructureError, ServerLostError
from embodyflow.orchestration.server.api_address import check_api_url
from embodyflow.orchestration.server.credentials import AUTH_STRING, REFUSED, new_auth_string, users_credentials
from embodyflow.orchestration.server.settings import access_settings, server_command
from embodyflow.process.ports import listen_on
from embodyflow.process.variables import variables_set

STOP_SECONDS = 5.0
"""Seconds that the server has to stop after SIGTERM."""


async def connect() -> None:
    """Make this process use the server that the settings name, or else start one that ends with this process.

    Raises:
        ConfigError: The named server refuses the credentials, or its address holds a secret.
        ServerLostError: The named server does not answer.
        InfrastructureError: The server did not start.
    """
    settings = get_current_settings()
    if settings.api.url:
        check_api_url(settings.api.url)
        await _check_access(settings.api.url)
    elif settings.server.ephemeral.enabled:  # else Prefect explains what to set
        await _start(settings.server.ephemeral.startup_timeout_seconds)


async def _check_access(api_url: str) -> None:
    """Check that the server answers and accepts our credentials."""
    try:
        async with get_client() as client:
            await client.read_flows(limit=1)
    except httpx.HTTPStatusError as error:
        if error.response.status_code in REFUSED:
            raise ConfigError(users_credentials().refusal(api_url, error.response.status_code)) from error
    except httpx.TransportError as error:
        reason = f"the Prefect server at {api_url} does not answer: {error or repr(error)}"
        raise ServerLostError(f"{reason}; start it, or unset PREFECT_API_URL") from error


async def _start(timeout: float) -> None:
    """Start a server on a free port of the loopback interface and wait until it answers.

    Args:
        timeout: Seconds until it must answer.
    """
    listener = listen_on(0)
    port = listener.getsockname()[1]
    secret, api_url = new_auth_string(), f"http://127.0.0.1:{port}/api"
    # The session of its own keeps Ctrl-C in the terminal from the server, to which the flow still reports its end.
    with listener:
        server = subprocess.Popen(
            server_command(listener),
            env={**os.environ, **access_settings(secret, port), **_EPHEMERAL},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[listener.fileno()],
        )
    atexit.register(_stop, server)  # Prefect's services send what they have left before that
    await _wait_until_healthy(server, api_url, timeout)
    # Processes that start later, such as Ray's workers, do not inherit the variables.
    with variables_set({"PREFECT_API_URL": api_url, AUTH_STRING: secret, "PREFECT_UI_URL": ""}):
        refresh_global_settings_context()


_EPHEMERAL = {"PREFECT_UI_ENABLED": "false", "PREFECT__SERVER_EPHEMERAL": "1"}
"""Settings of the server that Prefect starts for a flow: no UI, and no services that only deployments need."""


async def _wait_until_healthy(server: "subprocess.Popen[bytes]", api_url: str, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    async with httpx.AsyncClient(trust_env=False) as client:
        while time.monotonic() < deadline and server.poll() is None:
            try:
                if (await client.get(f"{api_url}/health")).is_success:
                    return
            except httpx.TransportError:  # it does not listen yet
                await asyncio.sleep(0.1)
    if server.poll() is not None:
        raise InfrastructureError(f"the temporary Prefect server ended with exit code {server.returncode}")
    raise InfrastructureError(
        f"the temporary Prefect server did not answer within {timeout:.0f} s; "
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS sets the limit"
    )


def _stop(server: "subprocess.Popen[bytes]") -> None:
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
