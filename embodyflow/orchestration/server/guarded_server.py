"""A Prefect server for this machine only.

Its password comes from Prefect's settings. Prefect has no setting for two more things, which this module adds:

- Requests whose ``Host`` is not this machine's loopback name are refused. Otherwise a web page could point a domain of
  its own at 127.0.0.1 (DNS rebinding), and the browser would take the server for a part of that page.
- A page at :data:`SIGN_IN_PATH` signs the browser in, so that a person can follow a link instead of typing a password.
"""

import socket
import sys

import uvicorn
from prefect.server.api.server import create_app
from prefect.settings import get_current_settings
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from embodyflow.orchestration.server.settings import SIGN_IN_PATH

HOSTS = ("127.0.0.1", "localhost")
"""Host names under which the server answers, on any port: a tunnel may forward another one."""

# The UI keeps the password in the browser's storage, base64-encoded. The password is in the fragment of the link, which
# a browser sends to no server and no log.
_SIGN_IN_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Prefect</title>
<script>
const password = decodeURIComponent(location.hash.slice(1));
if (password) localStorage.setItem("prefect-password", btoa(password));
location.replace("/");
</script>
<noscript>The Prefect UI needs JavaScript.</noscript>
</html>
"""


class GuardedServer:
    """An ASGI application that guards Prefect's.

    Args:
        app: Prefect's application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._guarded = TrustedHostMiddleware(self._route, allowed_hosts=HOSTS, www_redirect=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for a host in :data:`HOSTS`; refuse others with 400."""
        await self._guarded(scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == SIGN_IN_PATH:
            headers = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
            await HTMLResponse(_SIGN_IN_PAGE, headers=headers)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def main(descriptor: int) -> None:
    """Serve the API and the UI on a listening socket until a signal arrives."""
    settings = get_current_settings().server
    config = uvicorn.Config(
        GuardedServer(create_app(final=True)),
        timeout_keep_alive=settings.api.keepalive_timeout,
        ws_ping_interval=settings.api.websocket_ping_interval,
        ws_ping_timeout=settings.api.websocket_ping_timeout,
        log_level=settings.logging_level.lower(),
    )
    uvicorn.Server(config).run([socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    main(int(sys.argv[1]))
