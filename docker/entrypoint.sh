#!/bin/sh
# The airflow image's entry point: gives the API server the file with the admin's password, then becomes the command.
set -eu
if [ "${1:-} ${2:-}" = "airflow api-server" ]; then
  : "${AIRFLOW_ADMIN_PASSWORD:?the API server needs a password for admin}"
  export AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE="$AIRFLOW_HOME/passwords.json"
  (
    umask 077
    python -c 'import json, os; print(json.dumps({"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}))' \
      > "$AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"
  )
  unset AIRFLOW_ADMIN_PASSWORD
fi
exec "$@"
