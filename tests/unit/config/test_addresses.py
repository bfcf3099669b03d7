"""Addresses and secrets in a configuration, which a run records."""

import pytest
from pydantic import ValidationError

from embodyflow.config.agents.agent import McpServerConfig
from embodyflow.config.generation import RemoteConfig
from embodyflow.errors import ConfigError

WRONG = {
    "http://me:secret@127.0.0.1:8000": "must have no user name and no password, which are recorded and shown; allowed",
    "https://me@127.0.0.1/v1": "must have no user name and no password",
    "https://127.0.0.1/mcp?tavilyApiKey=secret": "must have no parameter tavilyApiKey, which is recorded and shown",
    "https://127.0.0.1/mcp?a=1&access_token=secret": "must have no parameter access_token",
    "https://127.0.0.1/mcp?X-Amz-Signature=secret": "must have no parameter X-Amz-Signature",
    "https://127.0.0.1/mcp#sig=secret": "must have no parameter sig",
    "http://": "must be an address such as http://localhost:8000, not http://",
    "http://host:port": "must be an address such as http://localhost:8000: ",
    "ftp://127.0.0.1": "must be an address such as http://localhost:8000, not ftp://127.0.0.1",
    "": "must be an address such as http://localhost:8000, not ",
}


@pytest.mark.parametrize(("address", "message"), WRONG.items())
def test_an_address_with_credentials_or_without_a_host_is_refused(address: str, message: str) -> None:
    for build in (lambda: RemoteConfig(base_url=address), lambda: McpServerConfig(url=address)):
        with pytest.raises(ValidationError, match=message) as refused:
            build()
        [mistake] = refused.value.errors()
        assert "secret" not in mistake["msg"]


def test_an_address_with_a_path_is_allowed() -> None:
    assert RemoteConfig(base_url="http://127.0.0.1:8000/x").base_url == "http://127.0.0.1:8000/x"
    assert McpServerConfig(url="http://[::1]:8000/mcp?author=monkey&design=1").url is not None
    assert McpServerConfig(url="http://[::1]:8000/mcp").name == "http://[::1]:8000/mcp"
    with pytest.raises(ValidationError, match="env and inherit are variables of a command; allowed without url"):
        McpServerConfig(url="http://[::1]:8000/mcp", inherit=["MY_API_KEY"])


def test_an_mcp_server_inherits_the_variables_that_it_names_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp", reason="mcp, of the extra mcp, is not installed")
    from embodyflow.agents.mcp.mcp_session import _transport

    monkeypatch.setenv("MY_API_KEY", "secret")
    monkeypatch.setenv("ANOTHER_KEY", "of nobody else's business")
    config = McpServerConfig(command=["server"], env={"LEVEL": "1"}, inherit=["MY_API_KEY"])
    transport = _transport(config)
    assert not isinstance(transport, str) and transport.env == {"MY_API_KEY": "secret", "LEVEL": "1"}
    assert "secret" not in config.model_dump_json() + " ".join(transport.args)
    monkeypatch.delenv("MY_API_KEY")
    with pytest.raises(ConfigError, match=r"mcp.inherit=MY_API_KEY: the rollout worker has no such environment variab"):
        _transport(config)
