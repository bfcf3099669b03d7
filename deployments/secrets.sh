#!/usr/bin/env bash
# Writes the secrets of a deployment into <folder>/secrets, as files that only this user can read, one for each program:
#
#   bash deployments/secrets.sh deployments/compose
#
# A deployment that exists keeps its secrets: its database knows the password.
set -euo pipefail
umask 077

folder=${1:?the folder of the deployment, such as deployments/compose}/secrets
mkdir "$folder"
password=$(openssl rand -hex 16) api=embodyflow:$(openssl rand -hex 16)
cat >"$folder/postgres.env" <<END
POSTGRES_USER=prefect
POSTGRES_PASSWORD=$password
POSTGRES_DB=prefect
END
cat >"$folder/prefect-server.env" <<END
PREFECT_SERVER_DATABASE_CONNECTION_URL=postgresql+asyncpg://prefect:$password@postgres/prefect
PREFECT_SERVER_API_AUTH_STRING=$api
END
cat >"$folder/prefect-client.env" <<END
PREFECT_API_AUTH_STRING=$api
END
cat >"$folder/ray.env" <<END
RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(openssl rand -hex 32)
END
echo "the password of the Prefect UI is that of $folder/prefect-client.env"
