#!/bin/sh
# Makes the secrets of compose.yaml. What is there already stays: the database knows its password.
set -eu
umask 077
cd "$(dirname "$0")"
mkdir -p secrets
cd secrets

random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }
keep() { # keep NAME TEXT
    # Containers read the files as users of their own. The directory is the owner's alone.
    [ -s "$1" ] || { printf '%s\n' "$2" >"$1.new" && chmod 644 "$1.new" && mv "$1.new" "$1"; }
}

keep postgres_password "$(random)"
password=$(cat postgres_password)
keep pgbouncer_users "\"evertick\" \"$password\""
keep database_url "postgresql://evertick:$password@pgbouncer:6432/evertick"
keep direct_database_url "postgresql://evertick:$password@postgres:5432/evertick"
keep secret_key "$(random)"
keep grafana_password "$(random)"
