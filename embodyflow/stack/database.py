"""Whether the user names a database for our Prefect server to use; Prefect knows many ways to do so."""

from typing import Any

from prefect.settings.models.server.database import ServerDatabaseSettings
from pydantic import ValidationError

from embodyflow.errors import ConfigError


class _NamedHere(ServerDatabaseSettings):
    """What the environment, ``.env`` and this folder's TOML files say; a profile is for the user's own server."""

    @classmethod
    def settings_customise_sources(cls, *classes: Any, **sources: Any) -> tuple[Any, ...]:
        return super().settings_customise_sources(*classes, **sources)[:-1]


def is_named() -> bool:
    """Say whether a database is named, by its URL or by its parts.

    Raises:
        ConfigError: by something that Prefect does not take.
    """
    try:
        named = _NamedHere()
    except ValidationError as error:
        mistake = error.errors()[0]
        key = str(mistake["loc"][0]).rpartition("database_")[2].upper()
        raise ConfigError(f"PREFECT_SERVER_DATABASE_{key}={mistake['input']}: {mistake['msg']}") from error
    url = named.connection_url
    return bool(url and url.get_secret_value()) or named.driver is not None
