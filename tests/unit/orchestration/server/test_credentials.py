"""Which credentials a Prefect server is shown, and which it must never see."""

from pathlib import Path

import pytest

from embodyflow.orchestration.server.credentials import (
    TOML_MARK,
    Credentials,
    new_auth_string,
    users_credentials,
    withhold_our_password,
)

URL = "http://prefect.example.org/api"


def test_the_header_is_that_of_prefects_own_client() -> None:
    assert Credentials("admin:pass", "key").headers() == {"Authorization": "Basic YWRtaW46cGFzcw=="}
    assert Credentials(api_key="key").headers() == {"Authorization": "Bearer key"}
    assert Credentials("").headers() == {}


@pytest.mark.parametrize(
    ("credentials", "beginning"),
    [
        (Credentials("me:wrong"), f"PREFECT_API_AUTH_STRING: {URL} refuses it (401 Unauthorized)"),
        (Credentials(api_key="wrong"), f"PREFECT_API_KEY: {URL} refuses it (401 Unauthorized)"),
        (Credentials(), f"PREFECT_API_AUTH_STRING: is not set, and {URL} wants credentials (401 Unauthorized)"),
    ],
)
def test_a_refusal_names_the_setting_and_not_its_value(credentials: Credentials, beginning: str) -> None:
    line = credentials.refusal(URL, 401)
    assert line.startswith(beginning) and "wrong" not in line + repr(credentials) and "\n" not in line


def test_passwords_are_random() -> None:
    made = {new_auth_string() for _ in range(50)}
    assert len(made) == 50 and all(len(each.partition(":")[2]) == 32 for each in made)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("PREFECT_API_AUTH_STRING", "PREFECT_API_KEY", "PREFECT_PROFILE", "PREFECT_PROFILES_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    return tmp_path


def test_the_users_credentials_come_from_every_place_that_prefect_reads(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert users_credentials() == Credentials()
    (here / "home").mkdir()
    profile = '[profiles.mine]\nPREFECT_API_KEY = "from-profile"\n'
    (here / "home" / "profiles.toml").write_text(f'active = "mine"\n\n{profile}')
    assert users_credentials() == Credentials(api_key="from-profile")
    (here / "prefect.toml").write_text('[api]\nauth_string = "from:toml"\n')
    assert users_credentials() == Credentials("from:toml", "from-profile")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "from:environment")
    assert users_credentials() == Credentials("from:environment", "from-profile")


@pytest.mark.parametrize(
    ("environ", "withheld"),
    [
        ({"PREFECT_API_URL": URL}, True),
        ({"PREFECT_API_URL": URL, "PREFECT_API_AUTH_STRING": "theirs"}, False),
        ({"PREFECT_API_URL": "http://127.0.0.1:4200/api/"}, False),
        ({}, False),
    ],
)
def test_the_stacks_password_is_withheld_from_other_servers(
    here: Path, environ: dict[str, str], withheld: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = '[api]\nurl = "http://127.0.0.1:4200/api"\nauth_string = "embodyflow:ours"\n'
    (here / "prefect.toml").write_text(TOML_MARK + ours)
    seen = dict(environ)
    withhold_our_password(seen, here)
    assert seen == environ | ({"PREFECT_API_AUTH_STRING": ""} if withheld else {})
    for name, value in seen.items():
        monkeypatch.setenv(name, value)
    expected = {True: {}, False: Credentials(seen.get("PREFECT_API_AUTH_STRING", "embodyflow:ours")).headers()}
    assert users_credentials().headers() == expected[withheld]


def test_the_stacks_password_is_withheld_from_a_server_that_an_env_file_names(here: Path) -> None:
    (here / "prefect.toml").write_text(f'{TOML_MARK}[api]\nurl = "http://127.0.0.1:4200/api"\nauth_string = "ours"\n')
    (here / ".env").write_text(f"PREFECT_API_URL={URL}\n")
    environ: dict[str, str] = {}
    withhold_our_password(environ, here)
    assert environ == {"PREFECT_API_AUTH_STRING": ""}


def test_a_prefect_toml_of_the_users_is_theirs_to_combine(here: Path) -> None:
    (here / "prefect.toml").write_text('[api]\nurl = "http://elsewhere/api"\nauth_string = "theirs"\n')
    environ = {"PREFECT_API_URL": URL}
    withhold_our_password(environ, here)
    (here / "prefect.toml").unlink()
    withhold_our_password(environ, here)
    assert environ == {"PREFECT_API_URL": URL}
