"""Detection of an unavailable Prefect server, and how long to wait for it. A run continues without the server."""

import httpx

RETRY_SECONDS = 2.0
"""Pause between two attempts to reach a server that does not answer."""

FINAL_TIMEOUT_SECONDS = 60.0
"""How long a finished run keeps trying to report each kind of what the server missed."""

_UNAVAILABLE = (httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.BAD_GATEWAY, httpx.codes.GATEWAY_TIMEOUT)
"""Status codes of a server that is temporarily unable to answer, or of a proxy whose server is down."""


def is_about(error: httpx.TransportError, api_url: str) -> bool:
    """Return True if the request that failed went to this server."""
    try:
        return str(error.request.url).startswith(api_url)
    except RuntimeError:  # no request is known
        return False


def is_unavailable(error: BaseException | None) -> bool:
    """Return True if a request failed because the server is unreachable or temporarily unable to answer."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in _UNAVAILABLE
    return isinstance(error, httpx.TransportError)
