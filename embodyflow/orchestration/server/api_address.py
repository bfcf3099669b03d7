"""The address of a Prefect server of the user's, which logs and messages show."""

from embodyflow.config.addresses import check_address
from embodyflow.errors import ConfigError
from embodyflow.orchestration.server.credentials import AUTH_STRING


def check_api_url(api_url: str) -> None:
    """Check that the address of a Prefect server holds no secret.

    Raises:
        ConfigError: It has a user name, a password or a parameter that holds a secret, or is no address.
    """
    try:
        check_address(api_url, f"{AUTH_STRING}=user:password")
    except ValueError as error:
        raise ConfigError(f"PREFECT_API_URL: {error}") from None
