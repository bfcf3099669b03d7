"""Credentials for a Prefect server: those that we make for a server of ours, and the user's for theirs."""

import base64
import secrets
import tomllib
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from dotenv import dotenv_values

if TYPE_CHECKING:
    from prefect.settings.models.api import APISettings

AUTH_STRING = "PREFECT_API_AUTH_STRING"
API_KEY = "PREFECT_API_KEY"
SERVER_AUTH_STRING = "PREFECT_SERVER_API_AUTH_STRING"
DATABASE = ("PREFECT_SERVER_DATABASE_", "PREFECT_API_DATABASE_")
"""Beginnings of the names of the settings of a server's database, among them its password."""

TOML_MARK = "# Written by `embodyflow up`; removed by `embodyflow down`.\n"
"""First line of the ``prefect.toml`` with the address and the password of a project's stack."""

REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
"""Status codes of a server that wants other credentials."""


@dataclass(frozen=True)
class Credentials:
    """Credentials that a client of a Prefect server presents.

    Attributes:
        auth_string: ``user:password`` of a server with basic authentication; it comes first, as in Prefect's client.
        api_key: Key of Prefect Cloud.
    """

    auth_string: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)

    def headers(self) -> dict[str, str]:
        """Return the HTTP header that Prefect's own client would send; empty without credentials."""
        if self.auth_string:
            return {"Authorization": "Basic " + base64.b64encode(self.auth_string.encode()).decode()}
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def refusal(self, api_url: str, status: int) -> str:
        """Return a line that says which setting to change when a server answers 401 or 403."""
        answer = f"{status} {HTTPStatus(status).phrase}"
        for name, value in ((AUTH_STRING, self.auth_string), (API_KEY, self.api_key)):
            if value:
                return f"{name}: {api_url} refuses it ({answer}); set the one of that server"
        return (
            f"{AUTH_STRING}: is not set, and {api_url} wants credentials ({answer}); set it to the server's "
            f"user:password, or {API_KEY} for Prefect Cloud"
        )


def new_auth_string() -> str:
    """Return a random ``user:password`` of 128 bits for a server of ours."""
    return f"embodyflow:{secrets.token_hex(16)}"


def withhold_our_password(environ: MutableMapping[str, str], folder: Path) -> None:
    """Keep the password of a folder's stack from another server that the environment or ``.env`` names.

    Prefect reads each setting by itself: the address from the environment, the password from ``prefect.toml``. An empty
    variable hides the password. Call it before Prefect is imported.

    Args:
        environ: Environment of this process.
        folder: Current folder, in which Prefect looks for both files.
    """
    toml = folder / "prefect.toml"
    if not toml.is_file() or not (text := toml.read_text()).startswith(TOML_MARK):
        return
    named = {**dotenv_values(folder / ".env"), **environ}
    api_url = named.get("PREFECT_API_URL")
    if api_url and AUTH_STRING not in named and tomllib.loads(text)["api"]["url"] != api_url.rstrip("/"):
        environ[AUTH_STRING] = ""


def users_credentials() -> Credentials:
    """Return the credentials that Prefect's settings hold: environment, ``.env``, TOML files or profile."""
    from prefect.settings.models.api import APISettings  # importing Prefect takes a second

    return credentials_in(APISettings())


def credentials_in(settings: "APISettings") -> Credentials:
    """Return the credentials in Prefect's settings."""
    auth_string, key = settings.auth_string, settings.key
    return Credentials(
        auth_string=auth_string.get_secret_value() if auth_string else None,
        api_key=key.get_secret_value() if key else None,
    )
