"""How to tell that the Prefect server is away, and how long to wait for it: a run goes on without."""

import httpx

PAUSE_SECONDS = 2.0
"""Between two attempts to tell a server that does not answer."""

FAREWELL_SECONDS = 120.0
"""How long a run that is over waits for the server to be told what it has not heard."""

_REFUSALS = (httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.BAD_GATEWAY, httpx.codes.GATEWAY_TIMEOUT)
"""What a server answers that is up and not able, or the proxy before one that is down."""


def means_away(error: BaseException | None) -> bool:
    """Say whether a request failed because the server cannot be reached, or refuses whatever it is asked for now."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in _REFUSALS
    return isinstance(error, httpx.TransportError)
