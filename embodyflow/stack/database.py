"""Detection of a database that the user names for our Prefect server; Prefect reads it from many places."""

from typing import Any

from prefect.settings.models.server.database import ServerDatabaseSettings
from pydantic import ValidationError

from embodyflow.errors import ConfigError

SECRETS = ("PASSWORD", "CONNECTION_URL")
"""Settings that no message shows."""


class _NamedHere(ServerDatabaseSettings):
    """Settings from the environment, ``.env`` and this folder's TOML files; profiles are for the user's own server."""

    @classmethod
    def settings_customise_sources(cls, *classes: Any, **sources: Any) -> tuple[Any, ...]:
        return super().settings_customise_sources(*classes, **sources)[:-1]


def is_named() -> bool:
    """Return True if a database is named, by its URL or by its parts.

    Raises:
        ConfigError: Prefect rejects a setting.
    """
    try:
        named = _NamedHere()
    except ValidationError as error:
        mistake = error.errors()[0]
        key = str(mistake["loc"][0]).rpartition("database_")[2].upper()
        shown = "" if key in SECRETS else f"={mistake['input']}"
        raise ConfigError(f"PREFECT_SERVER_DATABASE_{key}{shown}: {mistake['msg']}") from None
    url = named.connection_url
    return bool(url and url.get_secret_value()) or named.driver is not None
