#!/usr/bin/env bash
# Writes the secrets of a deployment into <folder>/secrets, as files that only this user can read, one for each program:
#
#   bash deployments/secrets.sh deployments/compose
#
# A deployment that exists keeps its secrets: its database knows the password.
set -euo pipefail
umask 077

folder=${1:?the folder of the deployment, such as deployments/compose}/secrets
if [[ -e $folder ]]; then
    echo "$folder exists; a deployment keeps its secrets" >&2
    exit 1
fi
# Each is a command of its own, because bash goes on after a failure in the middle of another one.
password=$(openssl rand -hex 16)
api=embodyflow:$(openssl rand -hex 16)
token=$(openssl rand -hex 32)

# The folder gets its name once it has all files, so that a full disk leaves no half of them to start a deployment with.
aside=$(mktemp -d "$folder.XXXXXX")
trap 'rm -rf "$aside"' EXIT
cat >"$aside/postgres.env" <<END
POSTGRES_USER=prefect
POSTGRES_PASSWORD=$password
POSTGRES_DB=prefect
END
cat >"$aside/prefect-server.env" <<END
PREFECT_SERVER_DATABASE_CONNECTION_URL=postgresql+asyncpg://prefect:$password@postgres/prefect
PREFECT_SERVER_API_AUTH_STRING=$api
END
cat >"$aside/prefect-client.env" <<END
PREFECT_API_AUTH_STRING=$api
END
cat >"$aside/ray.env" <<END
RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$token
END
mv "$aside" "$folder"
echo "the password of the Prefect UI is that of $folder/prefect-client.env"
